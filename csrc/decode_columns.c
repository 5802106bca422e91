/* Batches -> columns in Arrow's layout, without a Python object per record.
 *
 * A binary column is `row count + 1` int32 ends (the first is 0), the bytes in a row, and, once a
 * null was met, a bitmap of what is valid, lowest bit first. Numbers are in native order.
 */

#include <string.h>

#include "speedups.h"

/* A bytes object with room behind `size`; cut to it when finished. */
typedef struct {
    PyObject *bytes;
    Py_ssize_t size;
} Growing;

typedef struct {
    Growing ends;
    Growing data;
    Growing validity; /* no bytes: no null so far */
    int64_t rows;
    int64_t null_count;
} Column;

/* Which columns to make; offsets always are. Known to dlog.batch.open_batch. */
enum { TIMESTAMPS = 1, KEYS = 2, VALUES = 4, HEADERS = 8, EVERY_COLUMN = 15 };

typedef struct {
    int columns;
    Growing offsets;
    Growing timestamps;
    Column keys;
    Column values;
    Growing header_ends; /* no bytes: no header so far */
    Column header_keys;
    Column header_values;
} Table;

static int
start_growing(Growing *growing, Py_ssize_t capacity)
{
    growing->size = 0;
    growing->bytes = PyBytes_FromStringAndSize(NULL, capacity);
    return growing->bytes == NULL ? -1 : 0;
}

static inline int
reserve(Growing *growing, Py_ssize_t extra)
{
    Py_ssize_t capacity = PyBytes_GET_SIZE(growing->bytes);
    if (extra <= capacity - growing->size) {
        return 0;
    }
    Py_ssize_t wanted = growing->size + extra;
    wanted = wanted < capacity * 2 ? capacity * 2 : wanted;
    return _PyBytes_Resize(&growing->bytes, wanted < 256 ? 256 : wanted);
}

static inline int
push(Growing *growing, const void *data, Py_ssize_t size)
{
    if (reserve(growing, size) < 0) {
        return -1;
    }
    memcpy(PyBytes_AS_STRING(growing->bytes) + growing->size, data, (size_t)size);
    growing->size += size;
    return 0;
}

static int
push_zeros(Growing *growing, Py_ssize_t size)
{
    if (reserve(growing, size) < 0) {
        return -1;
    }
    memset(PyBytes_AS_STRING(growing->bytes) + growing->size, 0, (size_t)size);
    growing->size += size;
    return 0;
}

static inline int
push_int32(Growing *growing, int64_t number)
{
    int32_t narrow = (int32_t)number;
    return push(growing, &narrow, sizeof narrow);
}

static int
start_column(Column *column, Py_ssize_t rows, Py_ssize_t data_bytes)
{
    if (start_growing(&column->ends, 4 * (rows + 1)) < 0 ||
        start_growing(&column->data, data_bytes) < 0) {
        return -1;
    }
    return push_int32(&column->ends, 0);
}

static inline void
set_bit(Growing *bitmap, int64_t row)
{
    PyBytes_AS_STRING(bitmap->bytes)[row >> 3] |= (char)(1 << (row & 7));
}

/* Keeps the bitmap long enough for the next row; makes it at the first null. */
static int
note_validity(Column *column, int is_null)
{
    Growing *bitmap = &column->validity;
    if (bitmap->bytes == NULL) {
        if (!is_null) {
            return 0;
        }
        if (start_growing(bitmap, 0) < 0 || push_zeros(bitmap, (column->rows >> 3) + 1) < 0) {
            return -1;
        }
        for (int64_t row = 0; row < column->rows; row++) {
            set_bit(bitmap, row);
        }
    }
    else if (column->rows >> 3 >= bitmap->size && push_zeros(bitmap, 1) < 0) {
        return -1;
    }
    if (is_null) {
        column->null_count++;
    }
    else {
        set_bit(bitmap, column->rows);
    }
    return 0;
}

static inline int
push_span(Column *column, Span span)
{
    if ((span.size < 0 || column->validity.bytes != NULL) &&
        note_validity(column, span.size < 0) < 0) {
        return -1;
    }
    if (span.size > 0 && push(&column->data, span.data, (Py_ssize_t)span.size) < 0) {
        return -1;
    }
    column->rows++;
    return push_int32(&column->ends, column->data.size);
}

/* What is not UTF-8 becomes U+FFFD, as in Kafka's Java client: nobody checks names before. */
static int
push_name(Column *names, Span text)
{
    int64_t i = 0;
    while (i < text.size && text.data[i] < 0x80) {
        i++;
    }
    if (i == text.size) {
        return push_span(names, text);
    }
    PyObject *name =
        PyUnicode_DecodeUTF8((const char *)text.data, (Py_ssize_t)text.size, "replace");
    Py_ssize_t size;
    const char *encoded = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, &size);
    int result = encoded == NULL ? -1 : push_span(names, (Span){(const uint8_t *)encoded, size});
    Py_XDECREF(name);
    return result;
}

static int
push_headers(Table *table, const Batch *batch, const RecordView *view)
{
    if (table->header_ends.bytes == NULL) {
        if (view->header_count == 0) {
            return 0;
        }
        /* Those before had none: their ends are 0, and so is where the first list begins. */
        if (start_growing(&table->header_ends, 0) < 0 ||
            push_zeros(&table->header_ends, 4 + table->offsets.size / 2) < 0 ||
            start_column(&table->header_keys, 0, 0) < 0 ||
            start_column(&table->header_values, 0, 0) < 0) {
            return -1;
        }
    }
    const uint8_t *at = view->headers;
    for (int64_t i = 0; i < view->header_count; i++) {
        Span key, value;
        const char *wrong = read_header(&at, view->end, &key, &value);
        if (wrong != NULL) {
            return corrupt(batch, wrong); /* not reached: all headers were walked before */
        }
        if (push_name(&table->header_keys, key) < 0 ||
            push_span(&table->header_values, value) < 0) {
            return -1;
        }
    }
    return push_int32(&table->header_ends, table->header_keys.rows);
}

static int
push_batch(Table *table, Batch *batch, Selection *selection)
{
    Taken taken;
    int took;
    int columns = table->columns;
    while ((took = take_record(batch, selection, &taken)) > 0) {
        if ((columns & HEADERS && push_headers(table, batch, &taken.view) < 0) ||
            push(&table->offsets, &taken.offset, 8) < 0 ||
            (columns & TIMESTAMPS && push(&table->timestamps, &taken.timestamp_ms, 8) < 0) ||
            (columns & KEYS && push_span(&table->keys, taken.view.key) < 0) ||
            (columns & VALUES && push_span(&table->values, taken.view.value) < 0)) {
            return -1;
        }
    }
    return took;
}

/* Room for all that is wanted, as far as the batches' bytes bear out what their heads say: an
 * estimate, columns grow where it is too small. What is not needed is given back at the end. */
static int
start_table(Table *table, const Selection *selection)
{
    int64_t rows = 0;
    int64_t bytes = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(selection->batches); i++) {
        int64_t count;
        Py_ssize_t size = measure_batch(PyList_GET_ITEM(selection->batches, i), &count);
        if (size < 0) {
            return -1;
        }
        rows += count < size / RECORD_BYTES_MIN ? count : size / RECORD_BYTES_MIN;
        bytes += size;
        if (rows >= selection->record_count_max || bytes >= selection->bytes_max) {
            break;
        }
    }
    rows = rows < selection->record_count_max ? rows : selection->record_count_max;
    bytes = bytes < selection->bytes_max ? bytes : selection->bytes_max;
    if (rows < 0 || bytes < 0) {
        rows = bytes = 0;
    }
    int columns = table->columns;
    Py_ssize_t times = columns & TIMESTAMPS ? 8 * (Py_ssize_t)rows : 0;
    Py_ssize_t keys = columns & KEYS ? (Py_ssize_t)rows : 0;
    Py_ssize_t values = columns & VALUES ? (Py_ssize_t)rows : 0;
    return start_growing(&table->offsets, 8 * (Py_ssize_t)rows) < 0 ||
                   start_growing(&table->timestamps, times) < 0 ||
                   start_column(&table->keys, keys, 0) < 0 ||
                   start_column(&table->values, values, columns & VALUES ? (Py_ssize_t)bytes : 0) < 0
               ? -1
               : 0;
}

static int
push_batches(Table *table, const ModuleState *state, Selection *selection)
{
    for (Py_ssize_t i = 0; selection->is_complete && i < PyList_GET_SIZE(selection->batches); i++) {
        Batch batch;
        PyObject *item = PyList_GET_ITEM(selection->batches, i);
        if (open_batch(item, state->corrupt_message_error, &batch) < 0) {
            return -1;
        }
        int pushed = push_batch(table, &batch, selection);
        PyBuffer_Release(&batch.buffer);
        if (pushed < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
finish(Growing *growing)
{
    if (growing->bytes == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *bytes = NULL;
    if (_PyBytes_Resize(&growing->bytes, growing->size) == 0) {
        bytes = growing->bytes;
        growing->bytes = NULL;
    }
    return bytes;
}

static PyObject *
finish_column(Column *column)
{
    /* "N" takes over what is made, and gives up when one of them could not be. */
    return Py_BuildValue("NNNL", finish(&column->ends), finish(&column->data),
                         finish(&column->validity), (long long)column->null_count);
}

static PyObject *
finish_headers(Table *table)
{
    if (table->header_ends.bytes == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NNN", finish(&table->header_ends), finish_column(&table->header_keys),
                         finish_column(&table->header_values));
}

static void
drop_column(Column *column)
{
    Py_CLEAR(column->ends.bytes);
    Py_CLEAR(column->data.bytes);
    Py_CLEAR(column->validity.bytes);
}

static void
drop_table(Table *table)
{
    Py_CLEAR(table->offsets.bytes);
    Py_CLEAR(table->timestamps.bytes);
    drop_column(&table->keys);
    drop_column(&table->values);
    Py_CLEAR(table->header_ends.bytes);
    drop_column(&table->header_keys);
    drop_column(&table->header_values);
}

PyObject *
decode_columns(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Selection selection;
    Table table;
    memset(&table, 0, sizeof table);
    table.columns = EVERY_COLUMN;
    if (count == SELECTION_COUNT + 1) {
        table.columns = (int)PyLong_AsLong(args[--count]);
        if (table.columns == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (parse_selection(args, count, &selection) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (start_table(&table, &selection) == 0 &&
        push_batches(&table, PyModule_GetState(module), &selection) == 0) {
        result = Py_BuildValue("ONNNNN", selection.is_complete ? Py_True : Py_False,
                               finish(&table.offsets), finish(&table.timestamps),
                               finish_column(&table.keys), finish_column(&table.values),
                               finish_headers(&table));
    }
    drop_table(&table);
    return result;
}
