//! The causes for which a Node or a Service is not ready, each with its meaning and the next step.
//!
//! This table is the only place of these texts. Explanations and events take the next step from it,
//! and `docs/operating.md` contains the whole table.

use serde::{Serialize, Serializer};

/// The longest text of an event with its next step, in bytes. An event has at most 1024, and its end
/// must not be lost.
const MAX_NOTE: usize = 1020;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CauseRow {
    pub(crate) cause: Cause,
    pub(crate) name: &'static str,
    pub(crate) subject: Subject,
    pub(crate) meaning: &'static str,
    pub(crate) next_step: &'static str,
}

/// The kind of the objects that a cause concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A Node.
    Node,
    /// A Service.
    Service,
    /// A Node whose pod CIDRs or routes are missing.
    Network,
    /// Any of them.
    Any,
}

impl Subject {
    /// Returns the heading in the documentation.
    pub fn title(self) -> &'static str {
        match self {
            Self::Node => "Nodes",
            Self::Service => "Services",
            Self::Network => "Pod CIDRs and routes of nodes",
            Self::Any => "Any object",
        }
    }
}

macro_rules! causes {
    ($($name:ident $subject:ident $meaning:literal $next_step:literal;)+) => {
        /// The cause for which an object is not ready. The set is closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {
            $(#[doc = $meaning] $name,)+
        }

        /// All causes, in the order of their declaration.
        pub(crate) const TABLE: &[CauseRow] = &[$(CauseRow {
            cause: Cause::$name,
            name: stringify!($name),
            subject: Subject::$subject,
            meaning: $meaning,
            next_step: $next_step,
        },)+];
    };
}

causes! {
    // What the cloud answers, whatever the object.
    CloudAccessDenied Any
        "The cloud rejected the credentials, or they lack a permission."
        "correct the credentials or add the permission that the error names; then it is retried without a restart";
    CloudThrottled Any
        "The cloud throttles the requests of this account."
        "wait; if it lasts, find out who else sends requests for this account, or raise its limit";
    QuotaExceeded Any
        "A quota of the cloud account is used up."
        "raise the quota or delete what is not needed; it is retried after five minutes";
    CloudRejectedInput Any
        "The cloud or the provider rejected the request as invalid."
        "correct what the error names; a change of the object is retried at once";
    CloudConflict Any
        "The cloud is busy with another change of the same object, or another client changed it."
        "wait; if it lasts, see in the cloud what keeps the object busy";
    CloudObjectNotFound Any
        "The cloud does not find an object that the request refers to."
        "see whether the object that the error names was deleted in the cloud, and restore it or correct the reference";
    CloudNotImplemented Any
        "The cloud provider does not support this."
        "see the documentation of the provider; the request cannot succeed with it";
    CloudUnavailable Any
        "The cloud did not answer, or answered with an error that may go away by itself."
        "wait; if it lasts, check the state of the cloud and the network to it";
    ApiForbidden Any
        "The API server rejected a write because a permission is missing."
        "apply the roles of this version (rbac/ or the Helm chart); the error names verb and resource";
    ApiRejected Any
        "The API server or an admission webhook rejected a write as invalid."
        "see which field or webhook the error names";
    ApiUnavailable Any
        "The API server did not answer, throttled the request, or failed."
        "wait; if it lasts, check the API server";
    SyncPanicked Any
        "The sync of this object failed because of a bug. Other objects are not affected."
        "report the bug with the error and the log of the manager; the object is retried";

    // Nodes.
    NodeOfAnotherProvider Node
        "The provider ID belongs to another cloud provider, so this manager never changes the node."
        "if the node is in this cloud, delete the Node and let its kubelet register again without --provider-id";
    NodeBeingDeleted Node
        "The Node object is being deleted."
        "see which finalizers it has: kubectl get node NAME -o yaml";
    CloudNodeControllerNotRunning Node
        "The node has the uninitialized taint, but the controller that removes it does not run here."
        "enable cloud-node-controller with --controllers, or see whether another manager runs it";
    NodeNotSyncedYet Node
        "The node waits for its first query of the cloud, or the query is in flight."
        "wait some seconds; if it lasts, look for the controller in /readyz?verbose";
    InstanceNotFound Node
        "The cloud does not know an instance for the node, or not yet."
        "compare the node's name and provider ID with the instances in the cloud console, and check region and project of the cloud config";
    InvalidProviderId Node
        "The provider cannot use the node's provider ID, or the cloud rejected it."
        "delete the Node and let its kubelet register again with the right --provider-id, or without one";
    MissingProviderId Node
        "Neither the node nor the cloud has a provider ID for it."
        "set the kubelet's --provider-id, or see in the cloud why the instance has no ID";
    InvalidProvidedNodeIp Node
        "The annotation alpha.kubernetes.io/provided-node-ip, which the kubelet writes from --node-ip, is malformed."
        "correct --node-ip of the node's kubelet and restart the kubelet";
    NodeIpNotInCloud Node
        "The kubelet's --node-ip is an address that the cloud does not report for the instance."
        "correct --node-ip of the node's kubelet, or attach the address to the instance";
    InstanceStopped Node
        "The instance is shut down in the cloud, so the node has the shutdown taint."
        "start the instance, or delete it if it is not needed; the taint goes when the node is Ready";
    ShutdownTaintNotNeeded Node
        "The node is Ready and still has the shutdown taint."
        "wait for the next pass; it removes the taint";
    OutOfService Node
        "The instance has been shut down or gone for so long that this manager has set the out-of-service taint: Kubernetes deletes the node's pods and detaches their volumes."
        "start the instance, or delete it if it is not needed; the taint goes when the instance runs or the node is Ready";
    OutOfServiceDoubted Node
        "The cloud says that the instance is shut down, but something contradicts it or this process has not seen the instance run, so the out-of-service taint is not set."
        "see whether the machine is really off; then set the taint yourself, or delete the Node";
    OutOfServiceTaintNotNeeded Node
        "The node is Ready and still has the out-of-service taint of this manager."
        "wait for the next pass; it removes the taint";
    KubeletNotReady Node
        "The node is not Ready although its instance is not shut down: the kubelet does not report, or reports a problem."
        "look at the kubelet on the machine: kubectl describe node NAME, and the machine's console";
    AbsenceNotConfirmed Node
        "The cloud does not find the instance. The Node is deleted once that is confirmed."
        "nothing, if the instance was deleted; otherwise check region and project of the cloud config";
    DeletionContradicted Node
        "The instance was not found, but neither were others that the cloud found before, so its answers cannot be trusted."
        "check the cloud's credentials, region and health";
    DeletionWithoutEvidence Node
        "The instance was not found, but no other instance of the cluster was found either."
        "check the cloud's credentials, region and project, or delete the Node yourself if its machine is gone";
    MostInstancesGone Node
        "Most instances of the cluster are not found at once."
        "check the cloud's credentials, region and health, or delete the Nodes yourself if their machines are gone";
    OtherMachineRegistered Node
        "The instance was not found, but another machine has registered under the node's name."
        "delete the Node and restart its kubelet to have it registered anew";
    NeverInitialised Node
        "The node has neither a provider ID nor the uninitialized taint, so no manager ever initialised it."
        "start its kubelet with --cloud-provider=external, delete the Node and let it register again";
    TaintedByOthers Node
        "The node has taints that this manager neither sets nor removes."
        "see who sets each taint: /explain/nodes/NAME";

    // Pod CIDRs and routes.
    PodCidrPoolFull Network
        "A cluster CIDR has no free block for the node."
        "delete Nodes that are not needed, or move to a larger cluster CIDR";
    PodCidrNotAllocatedYet Network
        "The node has no pod CIDR yet."
        "wait; after a start the allocator waits up to 35 s for requests of the previous leader";
    PodCidrInvalid Network
        "The node's pod CIDR is malformed, outside the cluster CIDR, or also used by something else."
        "delete the Node and let its kubelet register again; a pod CIDR cannot be changed";
    NoPodCidr Network
        "The node has no pod CIDR, so there is nothing to create a route for."
        "enable node-ipam-controller and --allocate-node-cidrs here or in kube-controller-manager";
    PodCidrOutOfRange Network
        "The node's pod CIDR is outside --cluster-cidr, so it gets no route."
        "correct --cluster-cidr of this manager or of whoever allocates pod CIDRs";
    PodCidrOfAnotherCloud Network
        "A node of another cloud uses the same pod CIDR, so this node gets no route."
        "delete one of the two Nodes and let it register again, so that it gets another pod CIDR";
    PodCidrOfAnotherNode Network
        "Another node has the same pod CIDR and keeps the route."
        "delete one of the two Nodes and let it register again, so that it gets another pod CIDR";
    RoutesNotComparedYet Network
        "The routes have not been compared with the cloud since this process leads."
        "wait some seconds";
    RouteNotCreated Network
        "The node's route does not exist yet, and its creation has not failed."
        "wait some seconds; if it lasts, see /explain/routes";
    RoutePending Network
        "The cloud is still working on the route, or the node has no provider ID or address yet. The message says which."
        "wait; if it lasts longer than usual for this cloud, look at the route table in the cloud console";
    RouteWaitsForAddresses Network
        "The route was not created because the node has no addresses yet."
        "see why the node is not initialised";

    // Services.
    OtherLoadBalancerClass Service
        "The Service has a load balancer class that this manager does not serve."
        "run the controller of that class, or create the Service without spec.loadBalancerClass";
    ImplementedElsewhere Service
        "By its annotations, the Service belongs to another controller."
        "see the log and the events of that controller, or remove the annotation";
    ServiceInvalid Service
        "The Service requests something that cannot be served. An existing load balancer keeps serving the last valid state."
        "correct the field or annotation that the message names; the Service is then synced at once";
    ServiceBeingDeleted Service
        "The Service is being deleted, and its load balancer is deleted first."
        "wait; if it lasts, see the last attempt";
    LoadBalancerNotNeeded Service
        "The Service no longer has type LoadBalancer, and its load balancer is being deleted."
        "wait; if it lasts, see the last attempt";
    ServiceNotSyncedYet Service
        "The Service waits for its first sync, or the sync is running."
        "wait some seconds; if it lasts, look for the controller in /readyz?verbose";
    LoadBalancerPending Service
        "The cloud has accepted the change and is still working on it."
        "wait; if it lasts longer than usual for this cloud, look at the load balancer in the cloud console";
    NoBackendNodes Service
        "No node is a backend of the load balancer."
        "see who is left out and why: /explain/services/NAMESPACE/NAME";
    NoEndpoints Service
        "The Service has no endpoint that serves."
        "see whether the pods behind the Service's selector are ready";
    EndpointSlicesNotListed Service
        "The endpoints of the Service cannot be listed."
        "grant list and watch on endpointslices.discovery.k8s.io (rbac/ or the Helm chart)";
    CacheNotConfirmed Service
        "The API server did not confirm what the cache of this process shows, so the load balancer is kept as it is."
        "wait; if it lasts, check whether the API server answers, and restart the manager";
    MostServicesGone Service
        "Many Services disappeared at once without being deleted, as after a restored backup. Their load balancers are kept."
        "restore the Services, or delete the load balancers by hand if they are not needed";
    BackendsNotCurrent Service
        "A change of the nodes has not been applied to the load balancer yet."
        "wait; changes of nodes are applied together, at most 30 s later";
    StatusNotWritten Service
        "The load balancer is up to date, but the Service does not show its address, finalizer or annotations."
        "nothing; it is written again, at the latest after 30 s";
    DriftCheckDue Service
        "The load balancer is about to be compared with the cloud."
        "wait some seconds";
}

impl Cause {
    /// Returns all causes, in the order of their declaration.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.cause)
    }

    /// Returns the kind of the objects that it concerns.
    pub fn subject(self) -> Subject {
        self.row().subject
    }

    /// Returns the name, in PascalCase.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the meaning, as a sentence.
    pub fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Returns what to do about it.
    pub fn next_step(self) -> &'static str {
        self.row().next_step
    }

    /// Returns true if it only says what one process has not done yet.
    pub(crate) fn is_about_process(self) -> bool {
        matches!(
            self,
            Self::NodeNotSyncedYet
                | Self::PodCidrNotAllocatedYet
                | Self::RoutesNotComparedYet
                | Self::RouteNotCreated
                | Self::ServiceNotSyncedYet
                | Self::BackendsNotCurrent
                | Self::DriftCheckDue
        )
    }

    /// Returns the text of an event: `note`, followed by the next step.
    pub fn with_next_step(self, note: &str) -> String {
        let next_step = format!("; next step: {}", self.next_step());
        let end = note.floor_char_boundary(MAX_NOTE.saturating_sub(next_step.len()));
        format!("{}{next_step}", &note[..end])
    }

    pub(crate) fn row(self) -> &'static CauseRow {
        &TABLE[self as usize]
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Write as _};

    use super::*;

    const BEGIN: &str = "<!-- The table of causes is made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page -->\n";
    const END: &str = "<!-- end of the table of causes -->\n";

    #[test]
    fn every_cause_has_its_own_row_and_says_what_to_do() {
        let mut names = BTreeSet::new();
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.cause as usize, index, "{}", row.name);
            assert!(names.insert(row.name), "{} twice", row.name);
            assert!(row.meaning.ends_with('.'), "{}: {}", row.name, row.meaning);
            assert!(!row.next_step.ends_with('.') && !row.next_step.is_empty(), "{}", row.name);
            assert!(!row.meaning.contains('|') && !row.next_step.contains('|'), "{}", row.name);
        }
    }

    #[test]
    fn a_long_error_leaves_room_for_the_next_step() {
        let note = Cause::CloudThrottled.with_next_step(&"ü".repeat(2000));
        assert!(note.len() <= MAX_NOTE, "{}", note.len());
        assert!(note.ends_with(Cause::CloudThrottled.next_step()));
        assert_eq!(
            Cause::QuotaExceeded.with_next_step("no more"),
            "no more; next step: raise the quota or delete what is not needed; it is retried after five minutes"
        );
    }

    fn table() -> String {
        let mut text = String::new();
        for subject in [Subject::Node, Subject::Network, Subject::Service, Subject::Any] {
            let _ = write!(text, "\n#### {}\n\n", subject.title());
            text += "| Cause | Meaning | Next step |\n|---|---|---|\n";
            for cause in Cause::all().filter(|cause| cause.subject() == subject) {
                let (name, meaning, next_step) = (cause.name(), cause.meaning(), cause.next_step());
                let _ = writeln!(text, "| `{name}` | {meaning} | {next_step} |");
            }
        }
        text + "\n"
    }

    #[test]
    fn reference_page_of_causes_matches_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (head, rest) = page.split_once(BEGIN).expect("the page has the beginning");
        let (written, tail) = rest.split_once(END).expect("the page has the end");
        if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
            std::fs::write(path, format!("{head}{BEGIN}{}{END}{tail}", table())).unwrap();
        } else {
            assert!(
                written == table(),
                "docs/operating.md is out of date: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page"
            );
        }
    }
}
