//! What is known of groups, while it is read and changed at once.

use super::*;

/// Each page takes a tenth of a second: half of it until it is read, half of it until it is known.
const PAGE: Duration = Duration::from_millis(100);

/// An account that answers page by page: the group `default`, that of the nodes, and others after
/// it.
fn paged() -> (Case, Vec<SecurityGroupId>) {
    let case = Case::new();
    let others = (0..5)
        .map(|n| {
            case.world
                .aws
                .security_group(&case.world.vpc, &format!("more-{n}"), &[])
        })
        .collect();
    case.world
        .aws
        .configure(|knobs| (knobs.page_size, knobs.latency) = (1, PAGE));
    (case, others)
}

fn one() -> BTreeSet<Rule> {
    [rule(30001, "192.0.2.0/24", "kubernetes.io/rule/nlb/client=a1")].into()
}

#[tokio::test(start_paused = true)]
async fn a_list_that_began_before_a_change_does_not_undo_it() {
    let (case, others) = paged();
    let (book, nodes) = (&case.part.cache, &case.world.node_group);
    book.groups(&case.op, Duration::ZERO).await.unwrap();
    let change = async {
        // The list has read both groups and goes on.
        tokio::time::sleep(3 * PAGE).await;
        book.grant_missing(&case.op, nodes, "test", &one())
            .await
            .unwrap();
        assert!(book.delete(&case.op, &others[0], "test").await.unwrap());
    };
    let (listed, ()) = tokio::join!(book.groups(&case.op, Duration::ZERO), change);
    for known in [listed.unwrap(), book.groups(&case.op, Duration::MAX).await.unwrap()] {
        assert_eq!(known[nodes].ingress, one().into_iter().collect::<Vec<_>>());
        assert!(!known.contains_key(&others[0]), "it was deleted");
        assert_eq!(known.len(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_began_before_a_change_does_not_undo_it() {
    let (case, others) = paged();
    let (book, nodes) = (&case.part.cache, &case.world.node_group);
    book.groups(&case.op, Duration::ZERO).await.unwrap();
    let change = async {
        tokio::time::sleep(PAGE).await;
        book.grant_missing(&case.op, nodes, "test", &one())
            .await
            .unwrap();
    };
    let ids = [nodes.clone(), others[0].clone(), others[1].clone()];
    let (read, ()) = tokio::join!(book.read(&case.op, &ids), change);
    read.unwrap();
    let known = book.groups(&case.op, Duration::MAX).await.unwrap();
    assert_eq!(known[nodes].ingress, one().into_iter().collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_answer_nobody_waited_for_has_the_group_read_again() {
    let (case, _) = paged();
    let (book, nodes) = (&case.part.cache, &case.world.node_group);
    book.groups(&case.op, Duration::ZERO).await.unwrap();
    let rules = one();
    let change = book.grant_missing(&case.op, nodes, "test", &rules);
    tokio::time::timeout(PAGE * 3 / 4, change)
        .await
        .unwrap_err();
    case.requests();
    let known = book.groups(&case.op, Duration::MAX).await.unwrap();
    assert_eq!(known[nodes].ingress, one().into_iter().collect::<Vec<_>>());
    assert_eq!(case.requests(), 1, "of the one group");
}
