/* `RecordBuffer`: records encoded one behind the other into a bytearray with room for a head.
 *
 * The base of `dlog.batch.build.BatchBuilder`; `dlog.batch._pure.RecordBuffer` gives the same bytes.
 */

#include <stddef.h>
#include <string.h>

#include "record_buffer.h"

#include <structmember.h>

#define HEAD_BYTES 61
#define FIRST_CAPACITY 1024

int
check_timestamp(PyObject *object, long long *timestamp_ms)
{
    int overflow;
    *timestamp_ms = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*timestamp_ms == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow || !is_timestamp(*timestamp_ms)) {
        PyErr_Format(PyExc_ValueError, "%S is not a timestamp in ms", object);
        return -1;
    }
    return 0;
}

static int
push_bytes(PyObject *output, const char *data, Py_ssize_t size)
{
    Py_ssize_t before = PyByteArray_GET_SIZE(output);
    Py_ssize_t whole = before + field_bytes(size);
    if (PyByteArray_Resize(output, whole) < 0) {
        return -1;
    }
    write_field(PyByteArray_AS_STRING(output) + before, data, size);
    return 0;
}

static int
push_header(PyObject *output, PyObject *header)
{
    if (!PyTuple_Check(header) || PyTuple_GET_SIZE(header) != 2 ||
        !PyUnicode_Check(PyTuple_GET_ITEM(header, 0))) {
        PyErr_SetString(PyExc_TypeError,
                        "a header must be a tuple of key and value, the key a str");
        return -1;
    }
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(header, 0), &size);
    Field field;
    if (text == NULL || push_bytes(output, text, size) < 0 ||
        open_field(PyTuple_GET_ITEM(header, 1), &field) < 0) {
        return -1;
    }
    int pushed = push_bytes(output, field.data, field.size);
    close_field(&field);
    return pushed;
}

/* The encoded headers as a bytearray; their count comes first. */
static PyObject *
encode_headers(PyObject *headers)
{
    /* What can be gone over only once is empty when the record needs a second attempt. */
    if (!PySequence_Check(headers)) {
        PyErr_SetString(PyExc_TypeError, "headers must be a sequence");
        return NULL;
    }
    PyObject *items = PySequence_Tuple(headers);
    PyObject *output = items == NULL ? NULL : PyByteArray_FromStringAndSize(NULL, 0);
    if (output != NULL) {
        char count[VARINT_BYTES_MAX];
        Py_ssize_t size = write_varint(count, PyTuple_GET_SIZE(items)) - count;
        int failed = PyByteArray_Resize(output, size) < 0;
        if (!failed) {
            memcpy(PyByteArray_AS_STRING(output), count, (size_t)size);
        }
        for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(items); i++) {
            failed = push_header(output, PyTuple_GET_ITEM(items, i)) < 0;
        }
        if (failed) {
            Py_CLEAR(output);
        }
    }
    Py_XDECREF(items);
    return output;
}

/* Makes room for `size` more bytes: 1; 0 when that exceeds the bound; -1 without memory. */
static inline int
make_room(RecordBuffer *self, Py_ssize_t size)
{
    if (self->data == NULL || size > self->bytes_max - self->size_bytes) {
        return 0;
    }
    Py_ssize_t capacity = PyByteArray_GET_SIZE(self->data);
    Py_ssize_t wanted = self->size_bytes + size;
    if (wanted > capacity) {
        Py_ssize_t grown = capacity * 2 < self->bytes_max ? capacity * 2 : self->bytes_max;
        if (PyByteArray_Resize(self->data, grown < wanted ? wanted : grown) < 0) {
            return -1;
        }
    }
    return 1;
}

int
push_record(RecordBuffer *self, const Field *key, const Field *value, const Field *headers,
            long long timestamp_ms)
{
    if (key->size > self->bytes_max || value->size > self->bytes_max) {
        return 0;
    }
    long long delta = self->record_count == 0 ? 0 : timestamp_ms - self->base_timestamp_ms;
    Py_ssize_t content = 1 + varint_bytes(delta) + varint_bytes(self->record_count) +
                         field_bytes(key->size) + field_bytes(value->size) + headers->size;
    int fits = make_room(self, varint_bytes(content) + content);
    if (fits <= 0) {
        return fits;
    }
    char *at = PyByteArray_AS_STRING(self->data) + self->size_bytes;
    at = write_varint(at, content);
    *at++ = 0; /* the attributes; none are defined */
    at = write_varint(at, delta);
    at = write_varint(at, self->record_count);
    at = write_field(at, key->data, key->size);
    at = write_field(at, value->data, value->size);
    memcpy(at, headers->data, (size_t)headers->size);
    self->size_bytes = at + headers->size - PyByteArray_AS_STRING(self->data);
    if (self->record_count == 0) {
        self->base_timestamp_ms = timestamp_ms;
        self->max_timestamp_ms = timestamp_ms;
    }
    else if (timestamp_ms > self->max_timestamp_ms) {
        self->max_timestamp_ms = timestamp_ms;
    }
    self->record_count++;
    return 1;
}

static int
push_objects(RecordBuffer *self, PyObject *key_object, PyObject *value_object, PyObject *headers,
             long long timestamp_ms)
{
    Field key, value, encoded = NO_HEADERS;
    if (headers != NULL) {
        encoded.data = PyByteArray_AS_STRING(headers);
        encoded.size = PyByteArray_GET_SIZE(headers);
    }
    if (open_field(key_object, &key) < 0) {
        return -1;
    }
    int pushed = open_field(value_object, &value);
    if (pushed == 0) {
        pushed = push_record(self, &key, &value, &encoded, timestamp_ms);
        close_field(&value);
    }
    close_field(&key);
    return pushed;
}

static PyObject *
append(RecordBuffer *self, PyObject *const *args, Py_ssize_t count)
{
    long long timestamp_ms;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "append needs key, value, headers and timestamp_ms");
        return NULL;
    }
    if (check_timestamp(args[3], &timestamp_ms) < 0) {
        return NULL;
    }
    PyObject *headers = NULL;
    if (!(PyTuple_Check(args[2]) && PyTuple_GET_SIZE(args[2]) == 0)) {
        headers = encode_headers(args[2]);
        if (headers == NULL) {
            return NULL;
        }
    }
    int pushed = push_objects(self, args[0], args[1], headers, timestamp_ms);
    Py_XDECREF(headers);
    return pushed < 0 ? NULL : PyBool_FromLong(pushed);
}

/* Appends from `start` until one does not fit; -1 on error. The lists may change while a foreign
 * object gives its buffer, so nothing of them is remembered. */
static Py_ssize_t
push_many(RecordBuffer *self, PyObject *keys, PyObject *values, long long timestamp_ms,
          Py_ssize_t start)
{
    Py_ssize_t at = start;
    for (; at < PySequence_Fast_GET_SIZE(values); at++) {
        if (keys != NULL && at >= PySequence_Fast_GET_SIZE(keys)) {
            PyErr_SetString(PyExc_ValueError, "fewer keys than values");
            return -1;
        }
        PyObject *key = Py_NewRef(keys == NULL ? Py_None : PySequence_Fast_GET_ITEM(keys, at));
        PyObject *value = Py_NewRef(PySequence_Fast_GET_ITEM(values, at));
        int pushed = push_objects(self, key, value, NULL, timestamp_ms);
        Py_DECREF(key);
        Py_DECREF(value);
        if (pushed < 0) {
            return -1;
        }
        if (pushed == 0) {
            break;
        }
    }
    return at - start;
}

static PyObject *
append_many(RecordBuffer *self, PyObject *args)
{
    PyObject *keys, *values, *timestamp;
    Py_ssize_t start = 0;
    long long timestamp_ms;
    if (!PyArg_ParseTuple(args, "OOO|n:append_many", &keys, &values, &timestamp, &start) ||
        check_timestamp(timestamp, &timestamp_ms) < 0) {
        return NULL;
    }
    if (start < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative start");
        return NULL;
    }
    values = PySequence_Fast(values, "the values must be a sequence");
    if (values == NULL) {
        return NULL;
    }
    PyObject *fast_keys = NULL;
    Py_ssize_t pushed = -1;
    if (keys == Py_None ||
        (fast_keys = PySequence_Fast(keys, "the keys must be a sequence")) != NULL) {
        pushed = push_many(self, fast_keys, values, timestamp_ms, start);
    }
    Py_XDECREF(fast_keys);
    Py_DECREF(values);
    return pushed < 0 ? NULL : PyLong_FromSsize_t(pushed);
}

static PyObject *
take(RecordBuffer *self, PyObject *Py_UNUSED(none))
{
    if (self->data == NULL) {
        PyErr_SetString(PyExc_ValueError, "the records were taken before");
        return NULL;
    }
    if (PyByteArray_Resize(self->data, self->size_bytes) < 0) {
        return NULL;
    }
    PyObject *data = self->data;
    self->data = NULL;
    return data;
}

static int
init(RecordBuffer *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"bytes_max", NULL};
    Py_ssize_t bytes_max;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n:RecordBuffer", names, &bytes_max)) {
        return -1;
    }
    if (bytes_max < HEAD_BYTES || bytes_max > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a batch cannot be bounded by %zd bytes", bytes_max);
        return -1;
    }
    Py_ssize_t capacity = bytes_max < FIRST_CAPACITY ? bytes_max : FIRST_CAPACITY;
    PyObject *data = PyByteArray_FromStringAndSize(NULL, capacity);
    if (data == NULL) {
        return -1;
    }
    memset(PyByteArray_AS_STRING(data), 0, HEAD_BYTES);
    Py_XSETREF(self->data, data);
    self->bytes_max = bytes_max;
    self->size_bytes = HEAD_BYTES;
    self->record_count = 0;
    self->base_timestamp_ms = -1;
    self->max_timestamp_ms = -1;
    return 0;
}

static void
dealloc(RecordBuffer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
is_empty(RecordBuffer *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->record_count == 0);
}

static PyMethodDef methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, NULL},
    {"append_many", (PyCFunction)append_many, METH_VARARGS, NULL},
    {"append_columns", (PyCFunction)append_columns, METH_VARARGS, NULL},
    {"take", (PyCFunction)take, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"record_count", T_PYSSIZET, offsetof(RecordBuffer, record_count), READONLY, NULL},
    {"size_bytes", T_PYSSIZET, offsetof(RecordBuffer, size_bytes), READONLY, NULL},
    /* May be moved: a producer raises it as it gets memory. Any value is safe. */
    {"bytes_max", T_PYSSIZET, offsetof(RecordBuffer, bytes_max), 0, NULL},
    {"base_timestamp_ms", T_LONGLONG, offsetof(RecordBuffer, base_timestamp_ms), READONLY, NULL},
    {"max_timestamp_ms", T_LONGLONG, offsetof(RecordBuffer, max_timestamp_ms), READONLY, NULL},
    {NULL},
};

static PyGetSetDef properties[] = {
    {"is_empty", (getter)is_empty, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Encoded records of one batch, with room for its head in front."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec record_buffer_spec = {
    .name = "dlog.batch._speedups.RecordBuffer",
    .basicsize = sizeof(RecordBuffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};
