from dlog.batch._pure import decode_columns as decode_columns
from dlog.batch._pure import decode_records as decode_records
from dlog.batch._pure import murmur2 as murmur2
from dlog.batch._pure import murmur2_rows as murmur2_rows
from dlog.batch._pure_buffer import RecordBuffer as RecordBuffer
from dlog.batch._pure_find import find_record as find_record
from dlog.batch._pure_walk import walk_records as walk_records
