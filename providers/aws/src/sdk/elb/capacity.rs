//! Reserved capacity of load balancers.

use aws_sdk_elasticloadbalancingv2::{Client, types};

use crate::{
    api::{
        Action, AwsError,
        elb::{DescribeCapacityReservation, ModifyCapacityReservation},
    },
    sdk::{convert::count_or_zero, error},
};

pub(in crate::sdk) async fn describe(
    elb: &Client,
    call: DescribeCapacityReservation,
) -> Result<u32, AwsError> {
    let request = elb
        .describe_capacity_reservation()
        .load_balancer_arn(&*call.arn);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeCapacityReservation, error))?;
    let minimum = answer.minimum_load_balancer_capacity;
    Ok(count_or_zero(minimum.and_then(|minimum| minimum.capacity_units)))
}

pub(in crate::sdk) async fn modify(
    elb: &Client,
    call: ModifyCapacityReservation,
) -> Result<(), AwsError> {
    const ACTION: Action = Action::ModifyCapacityReservation;
    let request = elb
        .modify_capacity_reservation()
        .load_balancer_arn(&*call.arn);
    let request = if call.capacity_units == 0 {
        request.reset_capacity_reservation(true)
    } else {
        let units = i32::try_from(call.capacity_units).map_err(|_| {
            let units = call.capacity_units;
            error::unreadable(ACTION, format_args!("{units} capacity units are too many"))
        })?;
        let minimum = types::MinimumLoadBalancerCapacity::builder().capacity_units(units);
        request.minimum_load_balancer_capacity(minimum.build())
    };
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(ACTION, error))
}
