"""A program of its own: reads one table of each deployment with Spark SQL and Iceberg's runtime, whole, into
the folder's `spark.arrow`.

`python spark_history.py JARS TABLE DEPLOYMENT_FOLDER...`. Uses none of the project's code.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql import SparkSession


def main(jars: str, table: str, *folders: str) -> None:
    """One session per folder, because a catalog's rows hold its name: in each of them it is `local`."""
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for folder in folders:
        session, catalog = spark.newSession(), "spark.sql.catalog.local"
        session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        session.conf.set(f"{catalog}.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
        session.conf.set(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
        session.conf.set(f"{catalog}.jdbc.schema-version", "V1")
        session.conf.set(f"{catalog}.warehouse", f"{folder}/data")
        found = session.sql(f"SELECT kafka.offset AS offset, value FROM local.{table}").toArrow()
        with pa.OSFile(f"{folder}/spark.arrow", "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
