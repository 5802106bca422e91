/* Writing the parts of a record: varints, and keys and values taken from Python objects. */

#ifndef DLOG_FIELDS_H
#define DLOG_FIELDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define VARINT_BYTES_MAX 10

/* The bytes of a key or value while they are copied. */
typedef struct {
    Py_buffer buffer;
    const char *data;
    Py_ssize_t size; /* -1: null */
    int is_held;
} Field;

static inline uint64_t
zigzag(int64_t number)
{
    return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
}

static inline Py_ssize_t
varint_bytes(int64_t number)
{
    Py_ssize_t count = 1;
    for (uint64_t left = zigzag(number); left >= 0x80; left >>= 7) {
        count++;
    }
    return count;
}

static inline char *
write_varint(char *at, int64_t number)
{
    uint64_t left = zigzag(number);
    while (left >= 0x80) {
        *at++ = (char)(left | 0x80);
        left >>= 7;
    }
    *at++ = (char)left;
    return at;
}

static inline char *
write_field(char *at, const char *data, Py_ssize_t size)
{
    at = write_varint(at, size);
    if (size > 0) {
        memcpy(at, data, (size_t)size);
        at += size;
    }
    return at;
}

static inline Py_ssize_t
field_bytes(Py_ssize_t size)
{
    return varint_bytes(size) + (size > 0 ? size : 0);
}

static inline int
open_field(PyObject *object, Field *field)
{
    field->is_held = 0;
    if (object == Py_None) {
        field->data = NULL;
        field->size = -1;
        return 0;
    }
    if (PyBytes_Check(object)) {
        field->data = PyBytes_AS_STRING(object);
        field->size = PyBytes_GET_SIZE(object);
        return 0;
    }
    if (PyObject_GetBuffer(object, &field->buffer, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    field->is_held = 1;
    field->data = field->buffer.buf;
    field->size = field->buffer.len;
    return 0;
}

static inline void
close_field(Field *field)
{
    if (field->is_held) {
        PyBuffer_Release(&field->buffer);
    }
}

#endif
