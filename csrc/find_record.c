/* The first record of a batch at or after a time, or else the newest record of the batch.
 *
 * The twin in Python is dlog/batch/_pure_find.py. Runs without the GIL: a compressed batch of a few
 * KiB may hold millions of records.
 */

#include "speedups.h"

enum { DATA, RECORD_COUNT, BASE_TIMESTAMP, TIMESTAMP, OFFSET_DELTA_MIN, ARGUMENT_COUNT };

typedef struct {
    int64_t record_count;
    int64_t base_timestamp_ms;
    int64_t timestamp_ms;
    int64_t offset_delta_min;
} Wanted;

typedef struct {
    int64_t timestamp_ms;
    int64_t offset_delta; /* -1: no record has an offset that is wanted */
    int is_match;         /* 0: the newest record, none is at or after the time */
} Found;

static const char *
find(const uint8_t *at, const uint8_t *end, const Wanted *wanted, Found *found)
{
    for (int64_t i = 0; i < wanted->record_count; i++) {
        RecordView view;
        int64_t timestamp_ms;
        const char *wrong = read_record(&at, end, &view);
        if (wrong != NULL) {
            return wrong;
        }
        if (add_overflows(wanted->base_timestamp_ms, view.timestamp_delta, &timestamp_ms)) {
            return "a number has more than 64 bits";
        }
        if (view.offset_delta < wanted->offset_delta_min) {
            continue;
        }
        if (found->offset_delta < 0 || timestamp_ms > found->timestamp_ms) {
            found->timestamp_ms = timestamp_ms;
            found->offset_delta = view.offset_delta;
        }
        if (timestamp_ms >= wanted->timestamp_ms) {
            found->timestamp_ms = timestamp_ms;
            found->offset_delta = view.offset_delta;
            found->is_match = 1;
            return NULL;
        }
    }
    return at == end ? NULL : "bytes after the last record";
}

PyObject *
find_record(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const ModuleState *state = PyModule_GetState(module);
    int64_t numbers[ARGUMENT_COUNT] = {0};
    if (count != ARGUMENT_COUNT) {
        PyErr_SetString(PyExc_TypeError, "five arguments are needed");
        return NULL;
    }
    for (int i = RECORD_COUNT; i < ARGUMENT_COUNT; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    Wanted wanted = {numbers[RECORD_COUNT], numbers[BASE_TIMESTAMP], numbers[TIMESTAMP],
                     numbers[OFFSET_DELTA_MIN] < 0 ? 0 : numbers[OFFSET_DELTA_MIN]};
    Found found = {INT64_MIN, -1, 0};
    Py_buffer buffer;
    if (PyObject_GetBuffer(args[DATA], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    const uint8_t *at = buffer.buf;
    const char *wrong;
    Py_BEGIN_ALLOW_THREADS
    wrong = find(at, at + buffer.len, &wanted, &found);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    if (wrong != NULL) {
        PyErr_SetString(state->corrupt_message_error, wrong);
        return NULL;
    }
    if (found.offset_delta < 0) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("LLO", (long long)found.timestamp_ms, (long long)found.offset_delta,
                         found.is_match ? Py_True : Py_False);
}
