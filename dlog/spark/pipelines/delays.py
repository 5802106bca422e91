"""Example job: delays of flights by airport and hour, from a topic of JSON events.

Windows over the events' own time. `delays` reads what the topic has (a batch query: every window is
whole); `delays_as_stream` keeps a table up to date and needs a watermark to know when a window is
whole: the last one stays open until later flights arrive.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

FLIGHT = "year int, month int, day int, hour int, minute int, origin string, dep_delay double"
"""What is taken of each value; numbers that JSON writes as 5.0 are read as 5."""
_WHOLE = ("year", "month", "day", "hour", "minute")


def flights(records: DataFrame) -> DataFrame:
    """Return the flights in records of a topic: origin, when they were due, that hour, delay.

    `due` is New York's time as if it were UTC: hours stay hours whatever the session's time zone.
    """
    kept = FLIGHT.replace(" int", " double")
    flight = sf.from_json(sf.col("value").cast("string"), kept)
    # Not `flight.*`: the optimizer would parse the value once for each field.
    parsed = records.select(sf.inline(sf.array(flight)))
    # Null where there is no such time: Spark ends a query otherwise, for one such value.
    year, month, day, hour, minute = (sf.col(name).try_cast("int") for name in _WHOLE)
    due = sf.try_make_timestamp(year, month, day, hour, minute, sf.lit(0), sf.lit("UTC"))
    return parsed.select(
        due.alias("due"),
        hour.alias("hour"),
        "origin",
        sf.col("dep_delay").alias("delay"),
    ).where("due IS NOT NULL AND origin IS NOT NULL")


def by_window(found: DataFrame, window: str) -> DataFrame:
    """Return of each airport and window how many flights left, and how late, in minutes."""
    start = sf.window("due", window).alias("window")
    return (
        found.where("delay IS NOT NULL")
        .groupBy("origin", start)
        .agg(
            sf.count(sf.lit(1)).alias("flights"),
            sf.avg("delay").alias("delay"),
            sf.sum(sf.when(sf.col("delay") > 15, 1).otherwise(0)).alias("late"),
        )
        .select("origin", sf.col("window.start").alias("start"), "flights", "delay", "late")
    )


def delays(records: DataFrame, window: str = "1 hour") -> DataFrame:
    """Return the delays in windows of time, in their order."""
    return by_window(flights(records), window).sort("origin", "start")


def delays_by_hour_of_day(records: DataFrame) -> DataFrame:
    """Return the delays by airport and hour of the day: when is it best to leave?"""
    return (
        flights(records)
        .where("delay IS NOT NULL")
        .groupBy("origin", "hour")
        .agg(
            sf.count(sf.lit(1)).alias("flights"),
            sf.avg("delay").alias("delay"),
            sf.percentile("delay", sf.lit(0.9)).alias("p90"),
        )
        .sort("origin", "hour")
    )


def delays_as_stream(
    spark: SparkSession, options: dict[str, str], *, window: str = "1 hour", late: str = "1 day"
) -> DataFrame:
    """Return a stream of windows, each once it is whole: `late` after its last flight."""
    records = spark.readStream.format("dlog").options(**options).load()
    return by_window(flights(records).withWatermark("due", late), window)
