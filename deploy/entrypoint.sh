#!/bin/sh
# The image's entry point: the command `archiver` with its arguments. With the single argument `executor`, which Spark passes to its pods
# in Kubernetes, it becomes a Spark executor, configured by the variables that Spark sets.
set -eu
if [ "${1:-}" != executor ]; then
    exec archiver "$@"
fi

SPARK_HOME=${SPARK_HOME:-$(python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')}
export SPARK_HOME
classes=${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}
set -- "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
# SPARK_JAVA_OPT_0 and so on: one option each, with any characters. The last is prepended first.
last=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$last+set}\" ]"; do
    last=$((last + 1))
done
while [ "$last" -gt 0 ]; do
    last=$((last - 1))
    eval "option=\$SPARK_JAVA_OPT_$last"
    set -- "$option" "$@"
done
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@"
