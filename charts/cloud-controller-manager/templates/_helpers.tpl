{{- define "ccm.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Full name: the release's, unless the chart's is a part of it. Shorter than 63 so that suffixes fit. */}}
{{- define "ccm.fullname" -}}
{{- $name := include "ccm.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ccm.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ccm.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ccm.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/name" (include "ccm.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/component" "cloud-controller-manager"
  "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{/* Annotations of an object: those of all, and its own. Nothing if there are none. */}}
{{- define "ccm.annotations" -}}
{{- with merge (dict) (.own | default dict) .root.Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Replicas; the old name is read too. */}}
{{- define "ccm.replicas" -}}
{{- int (ternary .Values.replicas .Values.replicaCount (hasKey .Values "replicas")) -}}
{{- end -}}

{{- define "ccm.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "ccm.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "ccm.image" -}}
{{- $registry := .Values.image.registry | trimSuffix "/" -}}
{{- $repository := .Values.image.repository | default (printf "ccm-%s" .Values.provider) | trimPrefix "/" -}}
{{- /* A whole name, told as container engines tell one: the chart of a release has a registry by default. */ -}}
{{- if regexMatch "^([^/]*[.:][^/]*|localhost)/" $repository -}}{{- $registry = "" -}}{{- end -}}
{{- $name := ternary (printf "%s/%s" $registry $repository) $repository (ne $registry "") -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "ccm.cloudProvider" -}}
{{- ternary .Values.customProviderName .Values.provider (eq .Values.provider "custom") -}}
{{- end -}}

{{/* Whether there is a cloud config, and whether the chart writes it: "", "existing" or "own". */}}
{{- define "ccm.cloudConfigSource" -}}
{{- if .Values.cloudConfig.existingSecret.name -}}existing
{{- else if or .Values.cloudConfig.content (include "ccm.withoutNulls" .Values.cloudConfig.values | fromJson) (eq .Values.provider "aws") -}}own
{{- end -}}
{{- end -}}

{{/* A map as JSON, without the keys and items that are null. */}}
{{- define "ccm.withoutNulls" -}}
{{- $kept := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $kept $key (include "ccm.withoutNulls" $value | fromJson) -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $item := $value -}}
{{- if kindIs "map" $item -}}
{{- $items = append $items (include "ccm.withoutNulls" $item | fromJson) -}}
{{- else if not (kindIs "invalid" $item) -}}
{{- $items = append $items $item -}}
{{- end -}}
{{- end -}}
{{- $_ := set $kept $key $items -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $kept $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $kept -}}
{{- end -}}

{{- define "ccm.cloudConfig" -}}
{{- if .Values.cloudConfig.content -}}
{{- .Values.cloudConfig.content -}}
{{- else -}}
{{- $values := include "ccm.withoutNulls" .Values.cloudConfig.values | fromJson -}}
{{- if eq .Values.provider "aws" -}}
{{- /* Without it the provider refuses Services that name no type: a balancer of another kind than before breaks a rollback. */ -}}
{{- $values = mergeOverwrite (dict "Global" (dict "DefaultLoadBalancerType" "nlb")) $values -}}
{{- end -}}
{{- if has .Values.provider (list "aws" "openstack") -}}
{{- range $section, $keys := $values }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{- range $one := ternary $value (list $value) (kindIs "slice" $value) }}
{{ $key }} = "{{ include "ccm.plain" $one | replace "\\" "\\\\" | replace "\"" "\\\"" }}"
{{- end }}
{{- end }}
{{- end }}
{{- else -}}
{{- toYaml $values -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* File of the leader migration; nothing without one, and with the manager's built-in list. */}}
{{- define "ccm.leaderMigration" -}}
{{- if and .Values.leaderMigration.enabled .Values.leaderMigration.controllerLeaders (not .Values.shadow.enabled) -}}
apiVersion: controllermanager.config.k8s.io/v1
kind: LeaderMigrationConfiguration
leaderName: {{ .Values.leaderMigration.leaseName | quote }}
controllerLeaders:
  {{- toYaml .Values.leaderMigration.controllerLeaders | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* ClusterRoles that are summed up, by name of their file in files/generated-rules. */}}
{{- define "ccm.clusterRoles" -}}
{{- $given := list -}}
{{- range $name, $wanted := .Values.rbac.capabilities -}}
{{- $off := or (and (eq $name "route") (not $.Values.routes.enabled)) (and (eq $name "ipam") (not $.Values.nodeIPAM.enabled)) -}}
{{- /* With credentials of their own the controllers bring their rights along; the watches are the manager's. */ -}}
{{- $elsewhere := and $.Values.useServiceAccountCredentials (ne $name "endpoints") -}}
{{- if kindIs "string" $wanted -}}
{{- /* `auto`. On AWS pods as targets are a matter of annotations, so that any Service may have them. */ -}}
{{- $wanted = eq $.Values.provider "aws" -}}
{{- end -}}
{{- if and $wanted (not $off) (not $elsewhere) -}}{{- $given = append $given $name -}}{{- end -}}
{{- end -}}
{{- if .Values.useServiceAccountCredentials -}}{{- $given = append $given "caches" -}}{{- end -}}
{{- append $given "serving" | sortAlpha | join " " -}}
{{- end -}}

{{/* Label by which the parts of the ClusterRole are found; a ClusterRole of another origin that has it adds its rights. */}}
{{- define "ccm.aggregationLabel" -}}
rbac.cloud-controller-manager/aggregate-to-{{ include "ccm.fullname" . }}
{{- end -}}

{{/* Subject of every binding. */}}
{{- define "ccm.subjects" -}}
- kind: ServiceAccount
  name: {{ include "ccm.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
