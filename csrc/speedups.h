/* What the files of the extension `dlog.batch._speedups` share.
 *
 * Everything here has a twin in Python, in `dlog.batch._pure` and its siblings, with the same results
 * and the same refusals; `dlog.batch.native` chooses. Needs the GIL throughout, but for
 * `find_record`: single calls take microseconds to a few milliseconds.
 */

#ifndef DLOG_SPEEDUPS_H
#define DLOG_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "records.h"

typedef struct {
    PyObject *corrupt_message_error;
    PyObject *record_type; /* dlog.batch.records.Record, a named tuple of five */
} ModuleState;

/* The arguments that both decoders take, and where they stand. */
typedef struct {
    PyObject *batches; /* borrowed: a list of dlog.batch.decoding.OpenBatch */
    int64_t start_offset;
    int64_t end_offset; /* exclusive */
    int64_t record_count_max;
    int64_t bytes_max; /* of whole records; the first is taken whatever its size */
    int64_t record_count;
    int64_t bytes;
    int is_complete; /* 0: a bound was met before the end */
} Selection;

/* One batch while its records are read. */
typedef struct {
    Py_buffer buffer;
    const uint8_t *at;
    const uint8_t *end;
    int64_t records_left;
    int64_t base_offset;
    int64_t base_timestamp_ms;
    int64_t last_delta; /* of the offsets of its records; negative: unknown */
    int64_t append_time_ms;
    int has_append_time;
    PyObject *error_type; /* borrowed */
} Batch;

typedef struct {
    RecordView view;
    int64_t offset;
    int64_t timestamp_ms;
} Taken;

enum {
    SELECTION_COUNT = 5,  /* arguments of a selection */
    RECORD_BYTES_MIN = 7, /* length, attributes, two deltas, key, value, headers: a byte each */
};

int parse_selection(PyObject *const *args, Py_ssize_t count, Selection *selection);
/* The length of a batch's records and how many its head promises, which may be a lie; or -1. */
Py_ssize_t measure_batch(PyObject *item, int64_t *record_count);
int open_batch(PyObject *item, PyObject *error_type, Batch *batch);
/* Fills `taken` with the next record that is wanted: 1, at the end or at a bound 0, on error -1. */
int take_record(Batch *batch, Selection *selection, Taken *taken);
/* -1 with CorruptMessageError set, naming the batch. */
int corrupt(const Batch *batch, const char *cause);
/* Whether objects of this type are tuples and nothing more; else 0 with TypeError set. */
int is_named_tuple(PyObject *type);

PyObject *decode_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *decode_columns(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *walk_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *find_record(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *murmur2(PyObject *module, PyObject *data);
PyObject *murmur2_rows(PyObject *module, PyObject *parts);
int32_t murmur2_of(const uint8_t *data, Py_ssize_t size);

extern PyType_Spec record_buffer_spec;

#endif
