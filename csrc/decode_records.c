/* Batches -> a list of `Record`, one Python object per record and per field.
 *
 * Or of another named tuple that begins with the same fields and goes on with some that all records
 * share: what a consumer adds to a record costs nothing then.
 */

#include "speedups.h"

enum { KEY, VALUE, HEADERS, TIMESTAMP, OFFSET, FIELD_COUNT };

/* What neighbours share, kept from one record to the next. */
typedef struct {
    PyObject *no_headers;
    PyObject *timestamp; /* of the record before, or NULL */
    int64_t timestamp_ms;
    PyTypeObject *type;   /* borrowed, as what follows */
    PyObject *shape;      /* (type, field, ...) or NULL */
    Py_ssize_t more;      /* how many fields the shape adds */
} Shared;

static PyObject *
span_object(Span span)
{
    if (span.size < 0) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)span.data, (Py_ssize_t)span.size);
}

static PyObject *
header_object(Span key, Span value)
{
    /* What is not UTF-8 becomes U+FFFD, as in Kafka's Java client: nobody checks names before. */
    PyObject *name = PyUnicode_DecodeUTF8((const char *)key.data, (Py_ssize_t)key.size, "replace");
    if (name == NULL) {
        return NULL;
    }
    PyObject *content = span_object(value);
    PyObject *pair = content == NULL ? NULL : PyTuple_Pack(2, name, content);
    Py_DECREF(name);
    Py_XDECREF(content);
    return pair;
}

static PyObject *
headers_object(const Batch *batch, const RecordView *view)
{
    const uint8_t *at = view->headers;
    PyObject *headers = PyTuple_New((Py_ssize_t)view->header_count);
    for (Py_ssize_t i = 0; headers != NULL && i < view->header_count; i++) {
        Span key, value;
        const char *wrong = read_header(&at, view->end, &key, &value);
        PyObject *pair = NULL;
        if (wrong == NULL) {
            pair = header_object(key, value);
        }
        else {
            corrupt(batch, wrong); /* not reached: all headers were walked before */
        }
        if (pair == NULL) {
            Py_CLEAR(headers);
        }
        else {
            PyTuple_SET_ITEM(headers, i, pair);
        }
    }
    return headers;
}

static PyObject *
timestamp_object(Shared *shared, int64_t timestamp_ms)
{
    if (shared->timestamp == NULL || shared->timestamp_ms != timestamp_ms) {
        Py_XSETREF(shared->timestamp, PyLong_FromLongLong(timestamp_ms));
        shared->timestamp_ms = timestamp_ms;
    }
    return Py_XNewRef(shared->timestamp);
}

/* Reads the argument that follows the selection, if there is one. */
static int
parse_shape(PyObject *shape, Shared *shared)
{
    if (!PyTuple_CheckExact(shape) || PyTuple_GET_SIZE(shape) < 1) {
        PyErr_SetString(PyExc_TypeError, "the shape must be a tuple of a type and fields");
        return -1;
    }
    if (!is_named_tuple(PyTuple_GET_ITEM(shape, 0))) {
        return -1;
    }
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(shape); i++) {
        PyObject *field = PyTuple_GET_ITEM(shape, i);
        /* What the collector need not visit: see the end of `record_object`. */
        if (!PyUnicode_CheckExact(field) && !PyLong_CheckExact(field)) {
            PyErr_SetString(PyExc_TypeError, "the fields of the shape must be str or int");
            return -1;
        }
    }
    shared->type = (PyTypeObject *)PyTuple_GET_ITEM(shape, 0);
    shared->shape = shape;
    shared->more = PyTuple_GET_SIZE(shape) - 1;
    return 0;
}

static PyObject *
record_object(const Batch *batch, const Taken *taken, Shared *shared)
{
    PyObject *record = shared->type->tp_alloc(shared->type, FIELD_COUNT + shared->more);
    if (record == NULL) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)record)->ob_hash = -1; /* not known yet */
#endif
    PyObject *fields[FIELD_COUNT] = {NULL};
    fields[KEY] = span_object(taken->view.key);
    fields[VALUE] = span_object(taken->view.value);
    fields[HEADERS] = taken->view.header_count == 0 ? Py_NewRef(shared->no_headers)
                                                    : headers_object(batch, &taken->view);
    fields[TIMESTAMP] = timestamp_object(shared, taken->timestamp_ms);
    fields[OFFSET] = PyLong_FromLongLong(taken->offset);
    int failed = 0;
    for (int i = 0; i < FIELD_COUNT; i++) {
        failed |= fields[i] == NULL;
        PyTuple_SET_ITEM(record, i, fields[i]);
    }
    for (Py_ssize_t i = 0; i < shared->more; i++) {
        PyObject *field = PyTuple_GET_ITEM(shared->shape, i + 1);
        PyTuple_SET_ITEM(record, FIELD_COUNT + i, Py_NewRef(field));
    }
    if (failed) {
        Py_DECREF(record);
        return NULL;
    }
    /* Bytes, numbers and tuples of them make no cycle: spare the collector the visit. */
    PyObject_GC_UnTrack(record);
    return record;
}

static int
append_records(PyObject *records, Batch *batch, Selection *selection, Shared *shared)
{
    Taken taken;
    int took;
    while ((took = take_record(batch, selection, &taken)) > 0) {
        PyObject *record = record_object(batch, &taken, shared);
        if (record == NULL) {
            return -1;
        }
        int failed = PyList_Append(records, record);
        Py_DECREF(record);
        if (failed) {
            return -1;
        }
    }
    return took;
}

PyObject *
decode_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const ModuleState *state = PyModule_GetState(module);
    Selection selection;
    int has_shape = count == SELECTION_COUNT + 1;
    Shared shared = {.type = (PyTypeObject *)state->record_type};
    if (parse_selection(args, count - has_shape, &selection) < 0 ||
        (has_shape && parse_shape(args[SELECTION_COUNT], &shared) < 0)) {
        return NULL;
    }
    shared.no_headers = PyTuple_New(0);
    PyObject *records = shared.no_headers == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; records != NULL && selection.is_complete &&
                           i < PyList_GET_SIZE(selection.batches);
         i++) {
        Batch batch;
        if (open_batch(PyList_GET_ITEM(selection.batches, i), state->corrupt_message_error,
                       &batch) < 0) {
            Py_CLEAR(records);
            break;
        }
        if (append_records(records, &batch, &selection, &shared) < 0) {
            Py_CLEAR(records);
        }
        PyBuffer_Release(&batch.buffer);
    }
    Py_XDECREF(shared.no_headers);
    Py_XDECREF(shared.timestamp);
    if (records == NULL) {
        return NULL;
    }
    return Py_BuildValue("NO", records, selection.is_complete ? Py_True : Py_False);
}
