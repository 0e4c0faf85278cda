{{/* Mistakes that the schema cannot see because they lie between values. All are told at once. */}}
{{- define "ccm.validate" -}}
{{- $v := .Values -}}
{{- $wrong := list -}}
{{- if not $v.provider -}}
{{- $wrong = append $wrong "provider: is required: aws, openstack, mock or custom" -}}
{{- end -}}
{{- if and (has $v.provider (list "aws" "openstack")) (not $v.image.registry) (not $v.image.repository) -}}
{{- $wrong = append $wrong (printf "image.registry: is needed with provider %s, since no images are published: set the registry that has yours, or image.repository for a whole name or an image that the nodes already have" $v.provider) -}}
{{- end -}}
{{- $config := $v.cloudConfig -}}
{{- $sources := 0 -}}
{{- if include "ccm.withoutNulls" $config.values | fromJson }}{{ $sources = add1 $sources }}{{ end -}}
{{- if $config.content }}{{ $sources = add1 $sources }}{{ end -}}
{{- if $config.existingSecret.name }}{{ $sources = add1 $sources }}{{ end -}}
{{- if gt (int $sources) 1 -}}
{{- $wrong = append $wrong "cloudConfig: set one of values, content and existingSecret.name" -}}
{{- end -}}
{{- if has $v.provider (list "aws" "openstack") -}}
{{- range $section, $keys := $config.values -}}
{{- if kindIs "invalid" $keys -}}
{{- /* Null: left out. */ -}}
{{- else if not (kindIs "map" $keys) -}}
{{- $wrong = append $wrong (printf "cloudConfig.values.%s: a section of keys is needed for provider %s" $section $v.provider) -}}
{{- else -}}
{{- range $key, $value := $keys -}}
{{- if or (kindIs "map" $value) (contains "\n" (toString $value)) -}}
{{- $wrong = append $wrong (printf "cloudConfig.values.%s.%s: a value of one line is needed, or a list of those" $section $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.provider "openstack") (eq (int $sources) 0) -}}
{{- $wrong = append $wrong "cloudConfig: provider openstack needs one of values, content and existingSecret.name" -}}
{{- end -}}
{{- if and $v.customProviderName (ne $v.provider "custom") -}}
{{- $wrong = append $wrong (printf "customProviderName: is for provider custom, but provider is %s" $v.provider) -}}
{{- end -}}
{{- if and (eq $v.kind "Deployment") (gt (int (include "ccm.replicas" .)) 1) (not $v.leaderElection.enabled) -}}
{{- $wrong = append $wrong "leaderElection.enabled: is needed with more than one replica" -}}
{{- end -}}
{{- with $v.updateStrategy.type -}}
{{- if and (eq $v.kind "Deployment") (eq . "OnDelete") -}}
{{- $wrong = append $wrong "updateStrategy.type: OnDelete is for kind DaemonSet" -}}
{{- end -}}
{{- if and (eq $v.kind "DaemonSet") (eq . "Recreate") -}}
{{- $wrong = append $wrong "updateStrategy.type: Recreate is for kind Deployment" -}}
{{- end -}}
{{- end -}}
{{- $rolling := $v.updateStrategy.rollingUpdate | default dict -}}
{{- if and $rolling (ne ($v.updateStrategy.type | default "RollingUpdate") "RollingUpdate") -}}
{{- $wrong = append $wrong (printf "updateStrategy.rollingUpdate: is for type RollingUpdate, but the type is %s" $v.updateStrategy.type) -}}
{{- end -}}
{{- $zero := list "0" "0%" -}}
{{- $noSurge := has (toString ($rolling.maxSurge | default 0)) $zero -}}
{{- if and (hasKey $rolling "maxUnavailable") (has (toString $rolling.maxUnavailable) $zero) -}}
{{- if and $noSurge (or (hasKey $rolling "maxSurge") (eq $v.kind "DaemonSet")) -}}
{{- $wrong = append $wrong "updateStrategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so that no pod can be replaced" -}}
{{- end -}}
{{- else if and (eq $v.kind "DaemonSet") (not $noSurge) -}}
{{- $wrong = append $wrong "updateStrategy.rollingUpdate: a DaemonSet with maxSurge needs maxUnavailable 0" -}}
{{- end -}}
{{- if and (eq $v.kind "DaemonSet") $v.hostNetwork (not $noSurge) -}}
{{- $wrong = append $wrong "updateStrategy.rollingUpdate.maxSurge: must be 0 with kind DaemonSet and hostNetwork, since old and new pods of a node share its port" -}}
{{- end -}}
{{- if and $v.updateStrategy (not $v.leaderElection.enabled) (ne ($v.updateStrategy.type | default "") "Recreate") -}}
{{- $wrong = append $wrong "updateStrategy.type: Recreate is needed without leaderElection.enabled, so that two pods never work at the same time" -}}
{{- end -}}
{{- if and (eq $v.dnsPolicy "None") (not $v.dnsConfig.nameservers) -}}
{{- $wrong = append $wrong "dnsConfig.nameservers: is needed with dnsPolicy None" -}}
{{- end -}}
{{- if and $v.leaderMigration.enabled (not $v.leaderElection.enabled) -}}
{{- $wrong = append $wrong "leaderElection.enabled: is needed with leaderMigration.enabled" -}}
{{- end -}}
{{- if and $v.leaderMigration.enabled (eq $v.leaderMigration.leaseName $v.leaderElection.leaseName) -}}
{{- $wrong = append $wrong "leaderMigration.leaseName: is also leaderElection.leaseName, but two Leases are needed" -}}
{{- end -}}
{{- if and $v.leaderMigration.enabled (ne $v.leaderMigration.leaseName "cloud-provider-extraction-migration") (not $v.leaderMigration.controllerLeaders) -}}
{{- $wrong = append $wrong "leaderMigration.controllerLeaders: is needed with a leaseName of your own, since the built-in list has its own" -}}
{{- end -}}
{{- if and (not $v.leaderMigration.enabled) $v.leaderMigration.controllerLeaders -}}
{{- $wrong = append $wrong "leaderMigration.enabled: is needed with leaderMigration.controllerLeaders" -}}
{{- end -}}
{{- if and (eq $v.kind "DaemonSet") (not $v.leaderElection.enabled) -}}
{{- $wrong = append $wrong "leaderElection.enabled: is needed with kind DaemonSet" -}}
{{- end -}}
{{- if and $v.routes.enabled (not $v.cluster.cidr) -}}
{{- $wrong = append $wrong "cluster.cidr: is needed with routes.enabled" -}}
{{- end -}}
{{- if and $v.nodeIPAM.enabled (not $v.cluster.cidr) -}}
{{- $wrong = append $wrong "cluster.cidr: is needed with nodeIPAM.enabled" -}}
{{- end -}}
{{- if and $v.kubeconfig.existingSecret.name $v.apiServer.host -}}
{{- $wrong = append $wrong "apiServer.host: has no effect with kubeconfig.existingSecret.name, whose kubeconfig names the API server" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled $v.hostNetwork -}}
{{- $wrong = append $wrong "networkPolicy.enabled: does nothing for a pod with hostNetwork" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.metrics.service.enabled) -}}
{{- $wrong = append $wrong "metrics.service.enabled: is needed with metrics.serviceMonitor.enabled" -}}
{{- end -}}
{{- $monitor := $v.metrics.serviceMonitor -}}
{{- if and $monitor.enabled (not $monitor.tlsConfig) (not $v.serving.tls.existingSecret) -}}
{{- $wrong = append $wrong "serving.tls.existingSecret: is needed with metrics.serviceMonitor.enabled, or metrics.serviceMonitor.tlsConfig: a certificate that is generated at each start cannot be verified" -}}
{{- end -}}
{{- if and $monitor.enabled $monitor.tlsConfig.insecureSkipVerify (or $monitor.authorization $monitor.bearerTokenFile) -}}
{{- $wrong = append $wrong "metrics.serviceMonitor.tlsConfig.insecureSkipVerify: would send Prometheus' token to whoever answers; verify the certificate, or set bearerTokenFile to \"\" and use no authorization" -}}
{{- end -}}
{{- if and $v.metrics.reader.create (not $v.metrics.reader.subjects) -}}
{{- $wrong = append $wrong "metrics.reader.subjects: is needed with metrics.reader.create" -}}
{{- end -}}
{{- $asksForJob := and $v.metrics.prometheusRule.enabled (not (has "CloudControllerManagerDown" $v.metrics.prometheusRule.disabled)) -}}
{{- if and $asksForJob (not $v.metrics.serviceMonitor.enabled) (not $v.metrics.job) -}}
{{- $wrong = append $wrong "metrics.job: is needed with metrics.prometheusRule.enabled and without metrics.serviceMonitor.enabled: an alert asks whether anything of this job answers" -}}
{{- end -}}
{{- if and $v.metrics.job $v.metrics.serviceMonitor.enabled -}}
{{- $wrong = append $wrong "metrics.job: is for metrics that are scraped without metrics.serviceMonitor.enabled, which gives them a job of its own" -}}
{{- end -}}
{{- if and $v.rbac.create (not $v.serviceAccount.create) (not $v.serviceAccount.name) -}}
{{- $wrong = append $wrong "serviceAccount.name: is needed with rbac.create and without serviceAccount.create: the account default, which every pod of the namespace may use, would get the rights" -}}
{{- end -}}
{{- if and $v.rbac.create $v.useServiceAccountCredentials -}}
{{- range $name, $wanted := omit $v.rbac.capabilities "endpoints" -}}
{{- if not $wanted -}}
{{- $wrong = append $wrong (printf "rbac.capabilities.%s: has no effect with useServiceAccountCredentials, since each controller's own account has a role of Kubernetes; leave the controller out in controllers instead" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.hostNetwork) (regexMatch "^(127\\.|(0*:)+0*1$|(0*:)+[fF]{4}:127\\.)" $v.serving.bindAddress) -}}
{{- $wrong = append $wrong (printf "serving.bindAddress: at %s nothing reaches a pod without hostNetwork, and probes fail" $v.serving.bindAddress) -}}
{{- end -}}
{{- if and $v.shadow.enabled .Release.IsUpgrade -}}
{{- /* The Job would take the manager's place. Without a cluster, and for a release that has none, nothing is found. */ -}}
{{- range $kind := list "Deployment" "DaemonSet" -}}
{{- $live := lookup "apps/v1" $kind $.Release.Namespace (include "ccm.fullname" $) | default dict -}}
{{- if eq (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $live) $.Release.Name -}}
{{- $wrong = append $wrong (printf "shadow.enabled: would remove %s %s, the manager of this release: install the shadow as a release of its own" $kind (include "ccm.fullname" $)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $own := include "ccm.ownFlags" . | fromYaml -}}
{{- range $name, $_ := $v.extraArgs -}}
{{- with get $own ($name | replace "_" "-") -}}
{{- $wrong = append $wrong (printf "extraArgs.%s: is for the chart to set; use %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "values are wrong:\n- %s" ($wrong | join "\n- ")) -}}
{{- end -}}
{{- end -}}

{{/* Flags that the chart sets or that undo what it sets, with the value to use instead. */}}
{{- define "ccm.ownFlags" -}}
allocate-node-cidrs: nodeIPAM.enabled
authentication-kubeconfig: kubeconfig.existingSecret
authorization-kubeconfig: kubeconfig.existingSecret
bind-address: serving.bindAddress
cloud-config: cloudConfig
cloud-provider: provider or customProviderName
cluster-cidr: cluster.cidr
cluster-name: cluster.name
configure-cloud-routes: routes.enabled
controllers: controllers
enable-leader-migration: leaderMigration.enabled
feature-gates: featureGates
kubeconfig: kubeconfig.existingSecret
leader-elect: leaderElection.enabled
leader-elect-resource-name: leaderElection.leaseName
leader-elect-resource-namespace: leaderElection.leaseNamespace
leader-migration-config: leaderMigration.controllerLeaders
logging-format: logging.format
master: apiServer.host
secure-port: serving.port
report: shadow.report
shadow-once: shadow.enabled
tls-cert-file: serving.tls.existingSecret
tls-private-key-file: serving.tls.existingSecret
use-service-account-credentials: useServiceAccountCredentials
v: logging.verbosity
{{- end -}}
