use tokio::time::{Instant, sleep};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn tasks() -> Tasks {
    Tasks::new(CancellationToken::new())
}

/// A task that ends `after` it was asked to.
fn obedient(tasks: &mut Tasks, name: &'static str, after: Duration) {
    let stop = tasks.stop().clone();
    tasks.spawn(name, async move {
        stop.cancelled().await;
        sleep(after).await;
        Ok(())
    });
}

fn error(exit: TasksExit) -> TaskError {
    match exit {
        TasksExit::Failed(error) => error,
        TasksExit::Stopped => panic!("nothing failed"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_stop_token_stops_every_task_in_order() {
    let mut tasks = tasks();
    obedient(&mut tasks, "a", Duration::from_secs(3));
    obedient(&mut tasks, "b", Duration::ZERO);
    tasks.stop().cancel();
    let start = Instant::now();
    assert!(matches!(tasks.run(LIMIT).await, TasksExit::Stopped));
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_early_stops_the_others_and_is_named() {
    let mut tasks = tasks();
    obedient(&mut tasks, "a", Duration::ZERO);
    tasks.spawn("cache", async { Ok(()) });
    assert_eq!(error(tasks.run(LIMIT).await).to_string(), "task cache ended early");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_is_named_with_its_cause() {
    let mut tasks = tasks();
    obedient(&mut tasks, "a", Duration::ZERO);
    tasks.spawn("serving", async { anyhow::bail!("port in use") });
    let error = error(tasks.run(LIMIT).await);
    assert_eq!(format!("{:#}", anyhow::Error::new(error)), "task serving failed: port in use");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_named() {
    let mut tasks = tasks();
    obedient(&mut tasks, "a", Duration::ZERO);
    tasks.spawn("node", async { panic!("index {} out of range", 3) });
    assert_eq!(
        error(tasks.run(LIMIT).await).to_string(),
        "task node panicked: index 3 out of range"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_while_stopping_count_and_the_first_wins() {
    let mut tasks = tasks();
    for (name, after) in [("late", 2), ("early", 1)] {
        let stop = tasks.stop().clone();
        tasks.spawn(name, async move {
            stop.cancelled().await;
            sleep(Duration::from_secs(after)).await;
            anyhow::bail!("no")
        });
    }
    tasks.stop().cancel();
    assert_eq!(error(tasks.run(LIMIT).await).to_string(), "task early failed");
}

#[tokio::test(start_paused = true)]
async fn tasks_that_hang_are_named_and_dropped() {
    let mut tasks = tasks();
    let held = std::sync::Arc::new(());
    let weak = std::sync::Arc::downgrade(&held);
    obedient(&mut tasks, "good", Duration::ZERO);
    tasks.spawn("deaf", async move {
        std::future::pending::<()>().await;
        drop(held);
        Ok(())
    });
    tasks.stop().cancel();
    let start = Instant::now();
    assert_eq!(error(tasks.run(LIMIT).await).to_string(), "tasks did not end within 10s: deaf");
    assert_eq!(start.elapsed().as_secs(), 10);
    assert!(weak.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_early_end_still_bounds_the_others() {
    let mut tasks = tasks();
    tasks.spawn("deaf", std::future::pending());
    tasks.spawn("cache", async { Ok(()) });
    assert_eq!(error(tasks.run(LIMIT).await).to_string(), "task cache ended early");
}
