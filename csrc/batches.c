/* Which records of which batches are wanted, and walking them: the half that both decoders share. */

#include "speedups.h"

enum { DATA, RECORD_COUNT, BASE_OFFSET, BASE_TIMESTAMP, APPEND_TIME, LAST_DELTA, FIELD_COUNT };

static int
as_int64(PyObject *number, int64_t *value)
{
    *value = PyLong_AsLongLong(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

int
parse_selection(PyObject *const *args, Py_ssize_t count, Selection *selection)
{
    if (count != SELECTION_COUNT) {
        PyErr_SetString(PyExc_TypeError, "five arguments are needed");
        return -1;
    }
    if (!PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "the batches must be a list");
        return -1;
    }
    selection->batches = args[0];
    selection->record_count = 0;
    selection->bytes = 0;
    selection->is_complete = 1;
    if (as_int64(args[1], &selection->start_offset) < 0 ||
        as_int64(args[2], &selection->end_offset) < 0 ||
        as_int64(args[3], &selection->record_count_max) < 0 ||
        as_int64(args[4], &selection->bytes_max) < 0) {
        return -1;
    }
    return 0;
}

static int
check_batch(PyObject *item)
{
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "a batch must be a tuple of six");
        return -1;
    }
    return 0;
}

Py_ssize_t
measure_batch(PyObject *item, int64_t *record_count)
{
    if (check_batch(item) < 0 || as_int64(PyTuple_GET_ITEM(item, RECORD_COUNT), record_count) < 0) {
        return -1;
    }
    return PyObject_Size(PyTuple_GET_ITEM(item, DATA));
}

int
open_batch(PyObject *item, PyObject *error_type, Batch *batch)
{
    if (check_batch(item) < 0) {
        return -1;
    }
    PyObject *append_time = PyTuple_GET_ITEM(item, APPEND_TIME);
    batch->error_type = error_type;
    batch->append_time_ms = 0;
    batch->has_append_time = append_time != Py_None;
    if (as_int64(PyTuple_GET_ITEM(item, RECORD_COUNT), &batch->records_left) < 0 ||
        as_int64(PyTuple_GET_ITEM(item, BASE_OFFSET), &batch->base_offset) < 0 ||
        as_int64(PyTuple_GET_ITEM(item, BASE_TIMESTAMP), &batch->base_timestamp_ms) < 0 ||
        as_int64(PyTuple_GET_ITEM(item, LAST_DELTA), &batch->last_delta) < 0 ||
        (batch->has_append_time && as_int64(append_time, &batch->append_time_ms) < 0) ||
        PyObject_GetBuffer(PyTuple_GET_ITEM(item, DATA), &batch->buffer, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    batch->at = batch->buffer.buf;
    batch->end = batch->at + batch->buffer.len;
    return 0;
}

int
corrupt(const Batch *batch, const char *cause)
{
    PyErr_Format(batch->error_type, "batch at offset %lld: %s", (long long)batch->base_offset, cause);
    return -1;
}

static int
resolve(Batch *batch, Taken *taken)
{
    const int64_t delta = taken->view.offset_delta;
    taken->timestamp_ms = batch->append_time_ms;
    /* A reader that believed such an offset would pass over the batches behind this one. */
    if (batch->last_delta >= 0 && (delta < 0 || delta > batch->last_delta)) {
        return corrupt(batch, "a record lies outside its batch");
    }
    if (add_overflows(batch->base_offset, delta, &taken->offset) ||
        (!batch->has_append_time &&
         add_overflows(batch->base_timestamp_ms, taken->view.timestamp_delta,
                       &taken->timestamp_ms))) {
        return corrupt(batch, "a number has more than 64 bits");
    }
    return 0;
}

int
take_record(Batch *batch, Selection *selection, Taken *taken)
{
    while (batch->records_left > 0) {
        const char *wrong = read_record(&batch->at, batch->end, &taken->view);
        if (wrong != NULL) {
            return corrupt(batch, wrong);
        }
        if (resolve(batch, taken) < 0) {
            return -1;
        }
        batch->records_left--;
        if (taken->offset < selection->start_offset || taken->offset >= selection->end_offset) {
            continue;
        }
        if (selection->record_count >= selection->record_count_max ||
            (selection->record_count > 0 &&
             taken->view.whole_bytes > selection->bytes_max - selection->bytes)) {
            selection->is_complete = 0;
            return 0;
        }
        selection->record_count++;
        selection->bytes += taken->view.whole_bytes;
        return 1;
    }
    if (batch->at != batch->end) {
        return corrupt(batch, "bytes after the last record");
    }
    return 0;
}
