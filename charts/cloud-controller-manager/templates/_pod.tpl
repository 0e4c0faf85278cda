{{/* Arguments of the container. What the chart leaves alone has the binary's default. */}}
{{- define "ccm.args" -}}
{{- $v := .Values -}}
{{- $config := include "ccm.cloudConfigSource" . -}}
{{- $controllers := $v.controllers -}}
{{- if and $v.nodeIPAM.enabled (not (has "node-ipam-controller" $controllers)) -}}
{{- $controllers = append $controllers "node-ipam-controller" -}}
{{- end -}}
- {{ printf "--cloud-provider=%s" (include "ccm.cloudProvider" .) | quote }}
{{- if $config }}
- --cloud-config=/etc/cloud-controller-manager/config/{{ ternary $v.cloudConfig.existingSecret.key "cloud.conf" (eq $config "existing") }}
{{- end }}
{{- if $v.kubeconfig.existingSecret.name }}
{{- $file := printf "/etc/cloud-controller-manager/kubeconfig/%s" $v.kubeconfig.existingSecret.key }}
- --kubeconfig={{ $file }}
- --authentication-kubeconfig={{ $file }}
- --authorization-kubeconfig={{ $file }}
{{- end }}
- {{ printf "--cluster-name=%s" $v.cluster.name | quote }}
{{- if $v.cluster.cidr }}
- --cluster-cidr={{ $v.cluster.cidr }}
{{- end }}
- --configure-cloud-routes={{ $v.routes.enabled }}
{{- if $v.nodeIPAM.enabled }}
- --allocate-node-cidrs=true
{{- end }}
- --controllers={{ $controllers | join "," }}
{{- if $v.shadow.enabled }}
- --shadow-once
{{- with $v.shadow.report }}
- --report={{ . }}
{{- if $v.leaderElection.enabled }}
- --leader-elect-resource-name={{ $v.leaderElection.leaseName }}
- --leader-elect-resource-namespace={{ $v.leaderElection.leaseNamespace }}
{{- end }}
{{- end }}
{{- else }}
- --leader-elect={{ $v.leaderElection.enabled }}
{{- if $v.leaderElection.enabled }}
- --leader-elect-resource-name={{ $v.leaderElection.leaseName }}
- --leader-elect-resource-namespace={{ $v.leaderElection.leaseNamespace }}
{{- end }}
{{- if $v.leaderMigration.enabled }}
- --enable-leader-migration=true
{{- if include "ccm.leaderMigration" . }}
- --leader-migration-config=/etc/cloud-controller-manager/leader-migration/leader-migration.yaml
{{- end }}
{{- end }}
{{- if $v.useServiceAccountCredentials }}
- --use-service-account-credentials=true
{{- end }}
{{- end }}
{{- if $v.featureGates }}
{{- $gates := list }}
{{- range $gate, $on := $v.featureGates }}{{ $gates = append $gates (printf "%s=%t" $gate $on) }}{{ end }}
- --feature-gates={{ $gates | join "," }}
{{- end }}
{{- if not $v.shadow.enabled }}
- {{ printf "--bind-address=%s" $v.serving.bindAddress | quote }}
- --secure-port={{ int $v.serving.port }}
{{- if $v.serving.tls.existingSecret }}
- --tls-cert-file=/etc/cloud-controller-manager/tls/tls.crt
- --tls-private-key-file=/etc/cloud-controller-manager/tls/tls.key
{{- end }}
{{- end }}
- --logging-format={{ $v.logging.format }}
- --v={{ int $v.logging.verbosity }}
{{- range $name, $value := $v.extraArgs }}
{{- range $one := ternary $value (list $value) (kindIs "slice" $value) }}
- {{ printf "--%s=%s" $name (include "ccm.plain" $one) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value as a flag has it: whole numbers are numbers without exponent. */}}
{{- define "ccm.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}

{{- define "ccm.probe" -}}
httpGet:
  {{- if not (has .serving.bindAddress (list "0.0.0.0" "::")) }}
  host: {{ .serving.bindAddress | quote }}
  {{- end }}
  path: {{ .path }}
  port: https
  scheme: HTTPS
{{- with .probe.initialDelaySeconds }}
initialDelaySeconds: {{ . }}
{{- end }}
periodSeconds: {{ .probe.periodSeconds }}
timeoutSeconds: {{ .probe.timeoutSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
{{- end -}}

{{- define "ccm.volumes" -}}
{{- $v := .Values -}}
{{- $config := include "ccm.cloudConfigSource" . -}}
{{- if $config }}
- name: cloud-config
  secret:
    secretName: {{ ternary $v.cloudConfig.existingSecret.name (printf "%s-cloud-config" (include "ccm.fullname" .)) (eq $config "existing") | quote }}
    defaultMode: 288 # 0440; octal is not the same to all YAML readers
{{- end }}
{{- if $v.kubeconfig.existingSecret.name }}
- name: kubeconfig
  secret:
    secretName: {{ $v.kubeconfig.existingSecret.name | quote }}
    defaultMode: 288 # 0440; octal is not the same to all YAML readers
{{- end }}
{{- if and $v.serving.tls.existingSecret (not $v.shadow.enabled) }}
- name: tls
  secret:
    secretName: {{ $v.serving.tls.existingSecret | quote }}
    defaultMode: 288 # 0440; octal is not the same to all YAML readers
{{- end }}
{{- if include "ccm.leaderMigration" . }}
- name: leader-migration
  configMap:
    name: {{ include "ccm.fullname" . }}-leader-migration
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ccm.volumeMounts" -}}
{{- $v := .Values -}}
{{- if include "ccm.cloudConfigSource" . }}
- name: cloud-config
  mountPath: /etc/cloud-controller-manager/config
  readOnly: true
{{- end }}
{{- if $v.kubeconfig.existingSecret.name }}
- name: kubeconfig
  mountPath: /etc/cloud-controller-manager/kubeconfig
  readOnly: true
{{- end }}
{{- if and $v.serving.tls.existingSecret (not $v.shadow.enabled) }}
- name: tls
  mountPath: /etc/cloud-controller-manager/tls
  readOnly: true
{{- end }}
{{- if include "ccm.leaderMigration" . }}
- name: leader-migration
  mountPath: /etc/cloud-controller-manager/leader-migration
  readOnly: true
{{- end }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ccm.env" -}}
{{- if .Values.apiServer.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ int .Values.apiServer.port | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ccm.podTemplate" -}}
{{- $v := .Values -}}
metadata:
  labels:
    {{- mergeOverwrite (include "ccm.labels" . | fromYaml) $v.podLabels | toYaml | nindent 4 }}
  {{- $own := eq (include "ccm.cloudConfigSource" .) "own" }}
  {{- $migration := include "ccm.leaderMigration" . }}
  {{- if or $own $migration $v.podAnnotations }}
  annotations:
    {{- if $own }}
    # A changed cloud config is read by a restart.
    checksum/cloud-config: {{ include "ccm.cloudConfig" . | sha256sum }}
    {{- end }}
    {{- if $migration }}
    checksum/leader-migration: {{ $migration | sha256sum }}
    {{- end }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "ccm.serviceAccountName" . | quote }}
  automountServiceAccountToken: {{ empty $v.kubeconfig.existingSecret.name }}
  enableServiceLinks: false
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  hostNetwork: {{ $v.hostNetwork }}
  dnsPolicy: {{ $v.dnsPolicy | default (ternary "Default" "ClusterFirst" $v.hostNetwork) }}
  {{- with $v.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- if $v.shadow.enabled }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $v.affinity }}
  affinity:
    {{- toYaml $v.affinity | nindent 4 }}
  {{- else if and (eq $v.kind "Deployment") (not $v.shadow.enabled) }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "ccm.selectorLabels" . | nindent 16 }}
  {{- end }}
  {{- with $v.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "ccm.selectorLabels" $ | fromYaml)) }}
    - {{ ternary . (merge $own .) (hasKey . "labelSelector") | toYaml | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- with $v.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: cloud-controller-manager
      image: {{ include "ccm.image" . | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      {{- with $v.command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      args:
        {{- include "ccm.args" . | nindent 8 }}
      {{- with include "ccm.env" . | trim }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with $v.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if not $v.shadow.enabled }}
      ports:
        - name: https
          containerPort: {{ int $v.serving.port }}
          protocol: TCP
      {{- if $v.startupProbe.enabled }}
      startupProbe:
        {{- include "ccm.probe" (dict "serving" $v.serving "probe" $v.startupProbe "path" "/livez") | nindent 8 }}
      {{- end }}
      {{- if $v.livenessProbe.enabled }}
      livenessProbe:
        {{- include "ccm.probe" (dict "serving" $v.serving "probe" $v.livenessProbe "path" "/livez") | nindent 8 }}
      {{- end }}
      {{- if $v.readinessProbe.enabled }}
      readinessProbe:
        {{- include "ccm.probe" (dict "serving" $v.serving "probe" $v.readinessProbe "path" "/readyz") | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with $v.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      {{- with include "ccm.volumeMounts" . | trim }}
      volumeMounts:
        {{- . | nindent 8 }}
      {{- end }}
  {{- with include "ccm.volumes" . | trim }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}
