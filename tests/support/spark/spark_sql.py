"""A program of its own: reads a deployment's tables with Spark SQL and Iceberg's runtime, and prints what it
found as JSON.

`python spark_sql.py DEPLOYMENT_FOLDER IVY_CACHE PACKAGES`. Uses none of the project's code. Spark fetches the
packages into the cache folder.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(folder: str, cache: str, packages: str) -> None:
    """Count, sum, and read one offset."""
    catalog = "spark.sql.catalog.local"
    settings = {
        "spark.jars.packages": packages,
        "spark.jars.ivy": cache,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{folder}/catalog.db",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"{folder}/data",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answer: dict[str, object] = {}
    for topic in ("orders", "clicks"):
        rows = spark.sql(
            "SELECT kafka.partition AS p, count(*) AS rows, count(DISTINCT kafka.offset) AS offsets "
            f"FROM local.shop.{topic} GROUP BY 1"
        ).collect()
        answer[topic] = {
            "rows": {row.p: row.rows for row in rows},
            "distinct": {row.p: row.offsets for row in rows},
        }
    total = spark.sql(
        "SELECT sum(line.quantity) AS total FROM (SELECT explode(value.lines) AS line FROM local.shop.orders)"
    ).collect()
    answer["quantity"] = total[0].total
    answer["files"] = spark.sql("SELECT count(*) AS n FROM local.shop.orders.files").collect()[0].n
    answer["found"] = spark.sql(
        "SELECT * FROM local.shop.orders WHERE kafka.partition = 1 AND kafka.offset = 5"
    ).count()
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
