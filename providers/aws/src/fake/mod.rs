//! An in-memory AWS: one account and one region with state, which follow AWS' own contract, behind
//! the same [`Transport`] as the real one.
//!
//! Objects that the provider does not create (networks, instances, addresses) are created by
//! builders; everything that the provider creates can be read back. A test can set faults, quotas,
//! delays and inconsistency; results are never scripted. Time is tokio's, so tests with paused time
//! need not wait. AWS' answers follow its API reference. Where that is ambiguous, the stricter
//! reading is implemented, so that code that passes here is not rejected there. Codes are AWS' own;
//! messages are not always.

mod attributes;
mod balancers;
mod builders;
mod capacity;
mod classic;
mod classic_checks;
mod cluster;
mod error;
mod faults;
mod groups;
mod instances;
mod interfaces;
mod listeners;
mod lists;
mod network;
mod options;
mod read;
mod snapshot;
mod state;
mod tags;
mod targets;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;

pub use self::{
    builders::{InstanceBuilder, Interface},
    cluster::{CLUSTER, FakeCluster},
    faults::Crash,
    options::{FakeOptions, Quotas},
    snapshot::AccountSnapshot,
    state::REGION,
};
use self::{error::ApiResult, faults::RequestOutcome, state::AccountState};
use crate::{
    api::{Action, AwsError, Call, DryRunAnswer, Reply, Request, RequestClass, Service, Transport},
    client::Client,
};

/// ID of the account.
pub const ACCOUNT: &str = "123456789012";

/// The in-memory AWS. Clones share its state.
#[derive(Clone)]
pub struct FakeAws {
    state: Arc<Mutex<AccountState>>,
}

impl Default for FakeAws {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeAws {
    /// Creates an empty account, with only the zones `a`, `b`, `c` and a local zone.
    pub fn new() -> Self {
        Self { state: Arc::new(Mutex::new(AccountState::new())) }
    }

    /// Copies the account as it is now, without injected faults and the log of requests. The copy
    /// shows what a delayed read would return.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.state.lock().clone();
        state.faults = faults::Faults::default();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a transport to it.
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    /// Returns a client for it.
    pub fn client(&self) -> Client {
        Client::new(self.transport())
    }

    /// Sends one request without the provider's client: for tests that act as another client, or
    /// that compare with AWS' own answer.
    ///
    /// # Errors
    /// As [`Transport::send`].
    pub async fn ask<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let reply = self.send(request.into_call()).await?;
        R::from_reply(reply).ok_or_else(|| {
            AwsError::no_response(R::ACTION, "the answer belongs to another kind of request")
        })
    }

    /// Changes delays and sizes.
    pub fn configure(&self, change: impl FnOnce(&mut FakeOptions)) {
        let mut state = self.state.lock();
        change(&mut state.options);
        state.apply_visibility();
    }

    /// Changes quotas.
    pub fn quotas(&self, change: impl FnOnce(&mut Quotas)) {
        change(&mut self.state.lock().options.quotas);
    }

    /// Answers the next request of a kind with an error code; several calls queue up.
    pub fn fail_next(&self, action: Action, code: &str) {
        self.state.lock().faults.fail_next(action, code.to_owned());
    }

    /// Answers every request of a kind with an error code, until
    /// [`clear_faults`](Self::clear_faults).
    pub fn fail_always(&self, action: Action, code: &str) {
        self.state
            .lock()
            .faults
            .fail_always(action, code.to_owned());
    }

    /// Throttles the next requests of a kind.
    pub fn throttle(&self, action: Action, count: usize) {
        self.state.lock().faults.throttle(action, count);
    }

    /// Denies an action, like an IAM policy that lacks it.
    pub fn deny(&self, action: Action) {
        self.state.lock().faults.deny(action);
    }

    /// Denies `CreateTags` on objects that exist, like an IAM policy with a condition on
    /// `ec2:CreateAction`. The tags of a creation are allowed.
    pub fn deny_tags_after_creation(&self) {
        self.state.lock().faults.tags_only_at_creation = true;
    }

    /// Ignores `DryRun` for an action, like an emulator that does not know the parameter.
    pub fn ignore_dry_run(&self, action: Action) {
        self.state.lock().faults.without_dry_run.insert(action);
    }

    /// Returns the requests about which was asked whether they would be allowed.
    pub fn asked(&self) -> Vec<Call> {
        self.state.lock().faults.asked.clone()
    }

    /// Loses the answer of the n-th write from now; 1 is the next one.
    pub fn fail_nth_write(&self, n: usize, crash: Crash) {
        self.state.lock().faults.lose(n, crash);
    }

    /// Crashes the process after this many more writes: every later request, also a read, gets no
    /// answer and is not carried out, until [`restart_process`](Self::restart_process).
    pub fn crash_after(&self, writes: usize) {
        self.state.lock().faults.dead_after(writes);
    }

    /// Crashes the process at the n-th write from now: its answer is lost, and no later request is
    /// answered or carried out, until [`restart_process`](Self::restart_process).
    pub fn crash_at_write(&self, n: usize, crash: Crash) {
        let mut state = self.state.lock();
        state.faults.lose(n, crash);
        state.faults.dead_after(n);
    }

    /// Returns true if the process has crashed.
    pub fn is_dead(&self) -> bool {
        self.state.lock().faults.crashed
    }

    /// Restarts the process: clears all injected faults. The log of requests stays.
    pub fn restart_process(&self) {
        self.clear_faults();
    }

    /// Clears all injected faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.heal();
    }

    /// Returns the number of requests of a kind that reached AWS, including rejected ones.
    pub fn calls(&self, action: Action) -> usize {
        self.state
            .lock()
            .faults
            .log
            .iter()
            .filter(|call| call.action() == action)
            .count()
    }

    /// Returns the number of writes that reached AWS, including rejected ones.
    pub fn writes(&self) -> usize {
        self.state
            .lock()
            .faults
            .log
            .iter()
            .filter(|call| call.action().class() == RequestClass::Write)
            .count()
    }

    /// Returns the number of all requests that reached AWS.
    pub fn requests(&self) -> usize {
        self.state.lock().faults.log.len()
    }

    /// Returns the requests that reached AWS, in order.
    pub fn log(&self) -> Vec<Call> {
        self.state.lock().faults.log.clone()
    }

    /// Returns the actions of the requests, in order: `log` without the details.
    pub fn actions(&self) -> Vec<Action> {
        self.state
            .lock()
            .faults
            .log
            .iter()
            .map(Call::action)
            .collect()
    }

    /// Clears the log of requests.
    pub fn reset_calls(&self) {
        self.state.lock().faults.log.clear();
    }

    async fn half_latency(&self) {
        let half: Duration = self.state.lock().options.latency / 2;
        if !half.is_zero() {
            tokio::time::sleep(half).await;
        }
    }
}

#[async_trait]
impl Transport for FakeAws {
    async fn send(&self, call: Call) -> Result<Reply, AwsError> {
        self.half_latency().await;
        let result = {
            let mut state = self.state.lock();
            state.advance();
            match state.faults.decide(&call) {
                RequestOutcome::Failed(error) => Err(error),
                RequestOutcome::Served { answered } => {
                    let action = call.action();
                    let answer = state
                        .serve(call)
                        .map_err(|refusal| refusal.into_error(action));
                    if answered {
                        answer
                    } else {
                        Err(AwsError::no_response(action, "connection lost (ordered by the test)"))
                    }
                }
            }
        };
        self.half_latency().await;
        result
    }

    async fn would_allow(&self, call: Call) -> Result<DryRunAnswer, AwsError> {
        let action = call.action();
        if action.service() != Service::Ec2 {
            return Ok(DryRunAnswer::Unknown);
        }
        let is_ignored = {
            let faults = &mut self.state.lock().faults;
            faults.asked.push(call.clone());
            faults.without_dry_run.contains(&action)
        };
        if is_ignored {
            return self.send(call).await.map(|_| DryRunAnswer::CarriedOut);
        }
        self.half_latency().await;
        let refusal = self.state.lock().faults.refusal(&call);
        match refusal {
            None => Ok(DryRunAnswer::Allowed),
            Some(refusal) => DryRunAnswer::of_error(refusal.into_error(action)),
        }
    }
}

impl AccountState {
    // length: one arm per request
    fn serve(&mut self, call: Call) -> ApiResult<Reply> {
        Ok(match call {
            Call::DescribeInstances(c) => Reply::DescribeInstances(self.describe_instances(&c)?),
            Call::DescribeNetworkInterfaces(c) => {
                Reply::DescribeNetworkInterfaces(self.describe_interfaces(&c)?)
            }
            Call::DescribeAvailabilityZones(_) => {
                Reply::DescribeAvailabilityZones(self.zones.clone())
            }
            Call::DescribeInstanceTopology(c) => {
                Reply::DescribeInstanceTopology(self.describe_topology(&c)?)
            }
            Call::DescribeSubnets(c) => Reply::DescribeSubnets(self.describe_subnets(&c)?),
            Call::DescribeRouteTables(c) => {
                Reply::DescribeRouteTables(self.describe_route_tables(&c)?)
            }
            Call::DescribeVpcs(c) => Reply::DescribeVpcs(self.describe_vpcs(&c)?),
            Call::DescribeSecurityGroups(c) => {
                Reply::DescribeSecurityGroups(self.describe_groups(&c)?)
            }
            Call::CreateSecurityGroup(c) => Reply::CreateSecurityGroup(self.create_group(&c)?),
            Call::DeleteSecurityGroup(c) => Reply::DeleteSecurityGroup(self.delete_group(&c)?),
            Call::AuthorizeSecurityGroupIngress(c) => {
                Reply::AuthorizeSecurityGroupIngress(self.authorize(&c)?)
            }
            Call::RevokeSecurityGroupIngress(c) => {
                Reply::RevokeSecurityGroupIngress(self.revoke(&c)?)
            }
            Call::CreateTags(c) => Reply::CreateTags(self.create_tags(&c)?),
            Call::DeleteTags(c) => Reply::DeleteTags(self.delete_tags(&c)?),
            Call::CreateRoute(c) => Reply::CreateRoute(self.create_route(&c)?),
            Call::ReplaceRoute(c) => Reply::ReplaceRoute(self.replace_route(&c)?),
            Call::DeleteRoute(c) => Reply::DeleteRoute(self.delete_route(&c)?),
            Call::ModifyInstanceAttribute(c) => {
                Reply::ModifyInstanceAttribute(self.modify_instance(&c)?)
            }
            Call::ModifyNetworkInterfaceAttribute(c) => {
                Reply::ModifyNetworkInterfaceAttribute(self.modify_interface(&c)?)
            }
            Call::DescribeLoadBalancers(c) => {
                Reply::DescribeLoadBalancers(self.describe_balancers(&c)?)
            }
            Call::DescribeLoadBalancerAttributes(c) => {
                Reply::DescribeLoadBalancerAttributes(self.balancer_attributes(&c)?)
            }
            Call::DescribeCapacityReservation(c) => {
                Reply::DescribeCapacityReservation(self.capacity_reservation(&c)?)
            }
            Call::DescribeTargetGroups(c) => {
                Reply::DescribeTargetGroups(self.describe_target_groups(&c)?)
            }
            Call::DescribeTargetGroupAttributes(c) => {
                Reply::DescribeTargetGroupAttributes(self.target_group_attributes(&c)?)
            }
            Call::DescribeTargetHealth(c) => Reply::DescribeTargetHealth(self.describe_health(&c)?),
            Call::DescribeListeners(c) => Reply::DescribeListeners(self.describe_listeners(&c)?),
            Call::DescribeListenerAttributes(c) => {
                Reply::DescribeListenerAttributes(self.listener_attributes(&c)?)
            }
            Call::DescribeListenerCertificates(c) => {
                Reply::DescribeListenerCertificates(self.listener_certificates(&c)?)
            }
            Call::DescribeElbTags(c) => Reply::DescribeElbTags(self.describe_elb_tags(&c)?),
            Call::CreateLoadBalancer(c) => Reply::CreateLoadBalancer(self.create_balancer(&c)?),
            Call::DeleteLoadBalancer(c) => Reply::DeleteLoadBalancer(self.delete_balancer(&c)?),
            Call::ModifyLoadBalancerAttributes(c) => {
                Reply::ModifyLoadBalancerAttributes(self.modify_balancer_attributes(&c)?)
            }
            Call::ModifyCapacityReservation(c) => {
                Reply::ModifyCapacityReservation(self.modify_capacity_reservation(&c)?)
            }
            Call::SetSubnets(c) => Reply::SetSubnets(self.set_subnets(&c)?),
            Call::SetIpAddressType(c) => Reply::SetIpAddressType(self.set_ip_address_type(&c)?),
            Call::SetSecurityGroups(c) => Reply::SetSecurityGroups(self.set_security_groups(&c)?),
            Call::CreateTargetGroup(c) => Reply::CreateTargetGroup(self.create_target_group(&c)?),
            Call::ModifyTargetGroup(c) => Reply::ModifyTargetGroup(self.modify_target_group(&c)?),
            Call::ModifyTargetGroupAttributes(c) => {
                Reply::ModifyTargetGroupAttributes(self.modify_target_group_attributes(&c)?)
            }
            Call::DeleteTargetGroup(c) => Reply::DeleteTargetGroup(self.delete_target_group(&c)?),
            Call::RegisterTargets(c) => Reply::RegisterTargets(self.register(&c)?),
            Call::DeregisterTargets(c) => Reply::DeregisterTargets(self.deregister(&c)?),
            Call::CreateListener(c) => Reply::CreateListener(self.create_listener(&c)?),
            Call::ModifyListener(c) => Reply::ModifyListener(self.modify_listener(&c)?),
            Call::ModifyListenerAttributes(c) => {
                Reply::ModifyListenerAttributes(self.modify_listener_attributes(&c)?)
            }
            Call::DeleteListener(c) => Reply::DeleteListener(self.delete_listener(&c)?),
            Call::AddListenerCertificates(c) => {
                Reply::AddListenerCertificates(self.add_certificates(&c)?)
            }
            Call::RemoveListenerCertificates(c) => {
                Reply::RemoveListenerCertificates(self.remove_certificates(&c)?)
            }
            Call::AddElbTags(c) => Reply::AddElbTags(self.add_elb_tags(&c)?),
            Call::RemoveElbTags(c) => Reply::RemoveElbTags(self.remove_elb_tags(&c)?),
            Call::DescribeClassic(c) => Reply::DescribeClassic(self.describe_classic(&c)?),
            Call::DescribeClassicTags(c) => {
                Reply::DescribeClassicTags(self.describe_classic_tags(&c)?)
            }
            Call::DescribeClassicAttributes(c) => {
                Reply::DescribeClassicAttributes(self.classic_attributes(&c)?)
            }
            Call::CreateClassic(c) => Reply::CreateClassic(self.create_classic(&c)?),
            Call::CreateClassicListeners(c) => {
                Reply::CreateClassicListeners(self.create_classic_listeners(&c)?)
            }
            Call::DeleteClassicListeners(c) => {
                Reply::DeleteClassicListeners(self.delete_classic_listeners(&c)?)
            }
            Call::ConfigureClassicHealthCheck(c) => {
                Reply::ConfigureClassicHealthCheck(self.configure_classic_health_check(&c)?)
            }
            Call::ModifyClassicAttributes(c) => {
                Reply::ModifyClassicAttributes(self.modify_classic_attributes(&c)?)
            }
            Call::SetClassicSecurityGroups(c) => {
                Reply::SetClassicSecurityGroups(self.set_classic_security_groups(&c)?)
            }
            Call::AttachClassicSubnets(c) => {
                Reply::AttachClassicSubnets(self.attach_classic_subnets(&c)?)
            }
            Call::DetachClassicSubnets(c) => {
                Reply::DetachClassicSubnets(self.detach_classic_subnets(&c)?)
            }
            Call::CreateClassicPolicy(c) => {
                Reply::CreateClassicPolicy(self.create_classic_policy(&c)?)
            }
            Call::SetClassicListenerPolicies(c) => {
                Reply::SetClassicListenerPolicies(self.set_classic_listener_policies(&c)?)
            }
            Call::SetClassicBackendPolicies(c) => {
                Reply::SetClassicBackendPolicies(self.set_classic_backend_policies(&c)?)
            }
            Call::AddClassicTags(c) => Reply::AddClassicTags(self.add_classic_tags(&c)?),
            Call::RegisterClassic(c) => Reply::RegisterClassic(self.register_classic(&c)?),
            Call::DeregisterClassic(c) => Reply::DeregisterClassic(self.deregister_classic(&c)?),
            Call::DeleteClassic(c) => {
                self.delete_classic(&c);
                Reply::DeleteClassic(())
            }
            Call::GetCallerIdentity(_) => Reply::GetCallerIdentity(self.caller()),
        })
    }
}
