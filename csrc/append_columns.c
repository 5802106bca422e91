/* Columns in Arrow's layout -> records, and the hashes of a column of keys; see decode_columns.c.
 *
 * The columns come from elsewhere: every bound is checked before it is followed.
 */

#include <string.h>

#include "record_buffer.h"

/* A binary column that is read; `rows` is -1 for the column that is not there, all of it null. */
typedef struct {
    Py_buffer bounds;
    Py_buffer data;
    Py_buffer validity;
    Py_ssize_t rows;
} ColumnView;

typedef struct {
    ColumnView keys;
    ColumnView values;
    Py_buffer timestamps; /* without an object: all are `timestamp_ms` */
    long long timestamp_ms;
    Py_buffer header_bounds; /* without an object: no headers */
    ColumnView header_keys;
    ColumnView header_values;
    PyObject *encoded_headers; /* a bytearray, used again for each row */
} TableView;

static int32_t
int32_at(const Py_buffer *buffer, Py_ssize_t row)
{
    int32_t number;
    memcpy(&number, (const char *)buffer->buf + 4 * row, sizeof number);
    return number;
}

static void
close_column(ColumnView *column)
{
    PyBuffer_Release(&column->bounds);
    PyBuffer_Release(&column->data);
    PyBuffer_Release(&column->validity);
}

static int
open_column(PyObject *parts, ColumnView *column)
{
    if (parts == Py_None) {
        column->rows = -1;
        return 0;
    }
    if (!PyTuple_Check(parts) || PyTuple_GET_SIZE(parts) != 4) {
        PyErr_SetString(PyExc_TypeError, "a column must be a tuple of four");
        return -1;
    }
    PyObject *validity = PyTuple_GET_ITEM(parts, 2);
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(parts, 0), &column->bounds, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(PyTuple_GET_ITEM(parts, 1), &column->data, PyBUF_SIMPLE) < 0 ||
        (validity != Py_None &&
         PyObject_GetBuffer(validity, &column->validity, PyBUF_SIMPLE) < 0)) {
        return -1;
    }
    column->rows = column->bounds.len / 4 - 1;
    if (column->rows < 0 || (validity != Py_None && column->validity.len < (column->rows + 7) / 8)) {
        PyErr_SetString(PyExc_ValueError, "a column's buffer is too short");
        return -1;
    }
    return 0;
}

/* The field at a row that is there, without the check that `open_field` makes. */
static int
field_at(const ColumnView *column, Py_ssize_t row, Field *field)
{
    field->is_held = 0;
    field->data = NULL;
    field->size = -1;
    if (column->rows < 0) {
        return 0;
    }
    const uint8_t *validity = column->validity.buf;
    if (validity != NULL && !(validity[row >> 3] >> (row & 7) & 1)) {
        return 0;
    }
    int32_t start = int32_at(&column->bounds, row);
    int32_t end = int32_at(&column->bounds, row + 1);
    if (start < 0 || end < start || end > column->data.len) {
        PyErr_SetString(PyExc_ValueError, "a column's bounds make no sense");
        return -1;
    }
    field->data = (const char *)column->data.buf + start;
    field->size = end - start;
    return 0;
}

static int
open_headers(PyObject *parts, TableView *table)
{
    table->header_keys.rows = -1;
    if (parts == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(parts) || PyTuple_GET_SIZE(parts) != 3) {
        PyErr_SetString(PyExc_TypeError, "headers must be a tuple of three");
        return -1;
    }
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(parts, 0), &table->header_bounds, PyBUF_SIMPLE) < 0 ||
        open_column(PyTuple_GET_ITEM(parts, 1), &table->header_keys) < 0 ||
        open_column(PyTuple_GET_ITEM(parts, 2), &table->header_values) < 0) {
        return -1;
    }
    table->encoded_headers = PyByteArray_FromStringAndSize(NULL, 0);
    return table->encoded_headers == NULL ? -1 : 0;
}

static int
open_table(PyObject *keys, PyObject *values, PyObject *timestamps, PyObject *headers,
           TableView *table)
{
    if (open_column(keys, &table->keys) < 0 || open_column(values, &table->values) < 0 ||
        open_headers(headers, table) < 0) {
        return -1;
    }
    if (PyLong_Check(timestamps)) {
        return check_timestamp(timestamps, &table->timestamp_ms);
    }
    return PyObject_GetBuffer(timestamps, &table->timestamps, PyBUF_SIMPLE);
}

static void
close_table(TableView *table)
{
    close_column(&table->keys);
    close_column(&table->values);
    close_column(&table->header_keys);
    close_column(&table->header_values);
    PyBuffer_Release(&table->timestamps);
    PyBuffer_Release(&table->header_bounds);
    Py_CLEAR(table->encoded_headers);
}

static int
check_rows(const TableView *table, Py_ssize_t start, Py_ssize_t stop)
{
    if (start < 0 || (table->keys.rows >= 0 && stop > table->keys.rows) ||
        stop > table->values.rows ||
        (table->timestamps.obj != NULL && stop > table->timestamps.len / 8) ||
        (table->header_bounds.obj != NULL && stop > table->header_bounds.len / 4 - 1)) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows");
        return -1;
    }
    return 0;
}

static int
header_at(const TableView *table, Py_ssize_t row, Field *key, Field *value)
{
    if (field_at(&table->header_keys, row, key) < 0 ||
        field_at(&table->header_values, row, value) < 0) {
        return -1;
    }
    if (key->size < 0) {
        PyErr_SetString(PyExc_ValueError, "a header's key is null");
        return -1;
    }
    return 0;
}

static int
headers_at(TableView *table, Py_ssize_t row, Field *headers)
{
    int32_t first = int32_at(&table->header_bounds, row);
    int32_t end = int32_at(&table->header_bounds, row + 1);
    if (first < 0 || end < first || end > table->header_keys.rows ||
        end > table->header_values.rows) {
        PyErr_SetString(PyExc_ValueError, "the headers' bounds make no sense");
        return -1;
    }
    if (first == end) {
        return 0;
    }
    Field key, value;
    Py_ssize_t size = varint_bytes(end - first);
    for (int32_t i = first; i < end; i++) {
        if (header_at(table, i, &key, &value) < 0) {
            return -1;
        }
        size += field_bytes(key.size) + field_bytes(value.size);
    }
    if (PyByteArray_Resize(table->encoded_headers, size) < 0) {
        return -1;
    }
    headers->data = PyByteArray_AS_STRING(table->encoded_headers);
    headers->size = size;
    char *at = write_varint(PyByteArray_AS_STRING(table->encoded_headers), end - first);
    for (int32_t i = first; i < end; i++) {
        if (header_at(table, i, &key, &value) < 0) {
            return -1;
        }
        at = write_field(at, key.data, key.size);
        at = write_field(at, value.data, value.size);
    }
    return 0;
}

static int
push_row(RecordBuffer *self, TableView *table, Py_ssize_t row)
{
    Field key, value, headers = NO_HEADERS;
    long long timestamp_ms = table->timestamp_ms;
    if (table->timestamps.obj != NULL) {
        int64_t number;
        memcpy(&number, (const char *)table->timestamps.buf + 8 * row, sizeof number);
        timestamp_ms = number;
        if (!is_timestamp(timestamp_ms)) {
            PyErr_Format(PyExc_ValueError, "%lld is not a timestamp in ms", timestamp_ms);
            return -1;
        }
    }
    if (field_at(&table->keys, row, &key) < 0 || field_at(&table->values, row, &value) < 0 ||
        (table->header_bounds.obj != NULL && headers_at(table, row, &headers) < 0)) {
        return -1;
    }
    return push_record(self, &key, &value, &headers, timestamp_ms);
}

PyObject *
append_columns(RecordBuffer *self, PyObject *args)
{
    PyObject *keys, *values, *timestamps, *headers;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "OOOOnn:append_columns", &keys, &values, &timestamps, &headers,
                          &start, &stop)) {
        return NULL;
    }
    TableView table;
    memset(&table, 0, sizeof table);
    int pushed = -1;
    Py_ssize_t row = start;
    if (open_table(keys, values, timestamps, headers, &table) == 0 &&
        check_rows(&table, start, stop) == 0) {
        pushed = 1;
        while (row < stop && (pushed = push_row(self, &table, row)) > 0) {
            row++;
        }
    }
    close_table(&table);
    return pushed < 0 ? NULL : PyLong_FromSsize_t(row - start);
}

PyObject *
murmur2_rows(PyObject *Py_UNUSED(module), PyObject *parts)
{
    ColumnView column;
    memset(&column, 0, sizeof column);
    PyObject *hashes = NULL;
    if (open_column(parts, &column) == 0 && column.rows >= 0) {
        hashes = PyBytes_FromStringAndSize(NULL, 4 * column.rows);
    }
    for (Py_ssize_t row = 0; hashes != NULL && row < column.rows; row++) {
        Field field;
        int32_t hash = 0;
        if (field_at(&column, row, &field) < 0) {
            Py_CLEAR(hashes);
            break;
        }
        if (field.size >= 0) {
            hash = murmur2_of((const uint8_t *)field.data, field.size);
        }
        memcpy(PyBytes_AS_STRING(hashes) + 4 * row, &hash, sizeof hash);
    }
    close_column(&column);
    if (hashes == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a column must be a tuple of four");
    }
    return hashes;
}
