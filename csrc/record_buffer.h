/* `RecordBuffer` and what its two halves share: records from objects, and from columns. */

#ifndef DLOG_RECORD_BUFFER_H
#define DLOG_RECORD_BUFFER_H

#include "speedups.h"

#include "fields.h"

#define TIMESTAMP_MS_MAX (1LL << 62) /* so that no difference of two overflows */
#define NO_HEADERS {.data = "", .size = 1} /* the count, 0: the byte that ends the text */

typedef struct {
    PyObject_HEAD
    PyObject *data; /* a bytearray with room behind `size_bytes`; NULL once taken */
    Py_ssize_t size_bytes;
    Py_ssize_t bytes_max;
    Py_ssize_t record_count;
    long long base_timestamp_ms;
    long long max_timestamp_ms;
} RecordBuffer;

static inline int
is_timestamp(long long timestamp_ms)
{
    return timestamp_ms >= -1 && timestamp_ms <= TIMESTAMP_MS_MAX;
}

int check_timestamp(PyObject *object, long long *timestamp_ms);
/* 1; 0 when it does not fit; -1 on error. `headers` are encoded, their count first. */
int push_record(RecordBuffer *self, const Field *key, const Field *value, const Field *headers,
                long long timestamp_ms);
PyObject *append_columns(RecordBuffer *self, PyObject *args);

#endif
