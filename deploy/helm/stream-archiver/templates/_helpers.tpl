{{- define "archiver.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "archiver.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "archiver.labels" -}}
{{ include "archiver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "archiver.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "archiver.name" . }}
{{- else }}default{{ end }}
{{- end }}

{{- /* The configuration of the values, with the port and the service's names added. */}}
{{- define "archiver.config" -}}
{{- $name := include "archiver.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $config := deepCopy .Values.config -}}
{{- $http := $config.http | default dict -}}
{{- $ours := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) -}}
{{- $_ := set $http "listen" (printf "0.0.0.0:%d" (int .Values.port)) -}}
{{- $_ := set $http "allowed_hosts" (concat $ours ($http.allowed_hosts | default list) | uniq) -}}
{{- if not $http.tls }}{{ $_ := set $http "allow_http" true }}{{ end -}}
{{- $_ := set $config "http" $http -}}
{{- if .Values.executors.enabled -}}
{{- $spark := $config.spark | default dict -}}
{{- $ours := dict "spark.kubernetes.namespace" $space "spark.kubernetes.container.image" (include "archiver.image" .) -}}
{{- $_ := set $ours "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy -}}
{{- $_ := set $ours "spark.kubernetes.executor.podTemplateFile" "/etc/stream-archiver/executor-pod.yaml" -}}
{{- $_ := set $ours "spark.kubernetes.authenticate.executor.serviceAccountName" (include "archiver.account" .) -}}
{{- with .Values.image.pullSecrets }}{{ $_ := set $ours "spark.kubernetes.container.image.pullSecrets" (join "," .) }}{{ end -}}
{{- $_ := set $ours "spark.authenticate" true -}}
{{- $_ := set $ours "spark.network.crypto.enabled" true -}}
{{- /* Executors reach the pod by these, and end when it ends. */}}
{{- $_ := set $ours "spark.driver.host" (dict "env" "POD_IP") -}}
{{- $_ := set $ours "spark.kubernetes.driver.pod.name" (dict "env" "POD_NAME") -}}
{{- $_ := set $ours "spark.driver.port" (int .Values.executors.driverPort) -}}
{{- $_ := set $ours "spark.driver.blockManager.port" (int .Values.executors.blockManagerPort) -}}
{{- range $key, $value := $spark.conf }}{{ $_ := set $ours $key $value }}{{ end -}}
{{- $_ := set $spark "conf" $ours -}}
{{- $_ := set $spark "master" ($spark.master | default "k8s://https://kubernetes.default.svc") -}}
{{- $_ := set $config "spark" $spark -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "archiver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The rights of every pod: the archiver's and Spark's executors. */}}
{{- define "archiver.restricted.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}
{{- define "archiver.restricted.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- /* The template of Spark's executor pods. Without the archiver's labels: its services must not select them. */}}
{{- define "archiver.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    stream-archiver/executor-of: {{ include "archiver.name" . }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- include "archiver.restricted.pod" . | nindent 4 }}
  containers:
    - name: executor
      workingDir: /tmp
      securityContext: {{- include "archiver.restricted.container" . | nindent 8 }}
      volumeMounts:
        - { name: scratch, mountPath: /tmp }
  volumes:
    - name: scratch
      emptyDir: { sizeLimit: {{ .Values.scratch.size }} }
  {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
  {{- with index $.Values $key }}
  {{ $key }}: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

{{- /* The scheme of requests to the port. */}}
{{- define "archiver.scheme" -}}
{{- if ((.Values.config | default dict).http | default dict).tls }}https{{ else }}http{{ end -}}
{{- end }}

{{- /* Rejects values by which two pods could write what only one may, and unreachable probes. */}}
{{- define "archiver.checked" -}}
{{- $http := .Values.config.http | default dict -}}
{{- if and (hasKey $http "allow_http") (not $http.allow_http) (not $http.tls) -}}
{{- fail "config.http.allow_http is false and there is no config.http.tls: pods are asked from outside of themselves, so one of the two is needed" -}}
{{- end -}}
{{- if ($http.tls | default dict).client_ca_file -}}
{{- fail "config.http.tls.client_ca_file: the kubelet has no certificate to show, and would restart the pods for ever; leave it out" -}}
{{- end -}}
{{- $pods := 0 -}}
{{- $seen := dict -}}
{{- range .Values.workloads -}}
{{- $pods = add $pods (int .replicas) -}}
{{- if hasKey $seen .name }}{{ fail (printf "workloads: there are two of the name %s" .name) }}{{ end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- $config := .Values.config -}}
{{- if and .Values.executors.enabled (not (hasPrefix "s3://" (($config.data | default dict).uri | default ""))) -}}
{{- fail "config.data.uri is a folder of one pod, and executors are other pods: name s3://bucket/prefix, or leave executors.enabled out" -}}
{{- end -}}
{{- if gt (int $pods) 1 -}}
{{- if hasKey ($config.metadata | default dict) "sqlite" -}}
{{- fail "config.metadata.sqlite is a file of one pod, and there are several pods: name etcd, or have one workload with one replica" -}}
{{- end -}}
{{- if not (hasPrefix "s3://" (($config.data | default dict).uri | default "")) -}}
{{- fail "config.data.uri is a folder of one pod, and there are several pods: name s3://bucket/prefix, or have one workload with one replica" -}}
{{- end -}}
{{- range $config.catalogs -}}
{{- if hasPrefix "sqlite:" (.uri | toString) -}}
{{- fail (printf "config.catalogs: %s is a file of one pod, and there are several pods" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
