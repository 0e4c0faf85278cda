//! How often the API server is asked, how long, and what is kept.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep};

use tokio_util::sync::CancellationToken;

use super::{
    super::{
        AuthRefusal,
        review_cache::{Key, ReviewCache, ReviewError},
    },
    api_server::{Ca, Checked, FakeApiServer, get},
};

const TOKENS: &str = "tokenreviews";
const RIGHTS: &str = "subjectaccessreviews";

#[tokio::test(start_paused = true)]
async fn answers_are_kept_for_their_time() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &[]);
    world.allow("jane", "/metrics");
    let checked = Checked::new(&world).await;
    let (yes, no) = (get("/metrics").token("t1"), get("/configz").token("t1"));
    for _ in 0..3 {
        assert_eq!((checked.status(&yes).await, checked.status(&no).await), (200, 403));
    }
    assert_eq!((world.count(TOKENS), world.count(RIGHTS)), (1, 2));
    world.revoke("t1");
    world.forbid_all();
    advance(Duration::from_millis(5001)).await;
    assert_eq!((checked.status(&yes).await, checked.status(&no).await), (200, 403));
    assert_eq!(
        (world.count(TOKENS), world.count(RIGHTS)),
        (1, 3),
        "the no is asked again after 5 s"
    );
    advance(Duration::from_secs(5)).await;
    assert_eq!(
        checked.status(&yes).await,
        401,
        "a revoked token works no longer than its answer is kept"
    );
    world.token("t1", "jane", &[]);
    assert_eq!(checked.status(&yes).await, 401, "a no is kept, too");
    advance(Duration::from_millis(10_001)).await;
    assert_eq!(checked.status(&yes).await, 403, "known again, without the right");
}

#[tokio::test(start_paused = true)]
async fn users_do_not_share_answers() {
    let world = FakeApiServer::new();
    for (token, groups) in [("t1", &["a"][..]), ("t2", &["b"]), ("t3", &["a"])] {
        world.token(token, "jane", groups);
    }
    let checked = Checked::new(&world).await;
    for (path, token) in [("/a", "t1"), ("/b", "t1"), ("/a", "t2"), ("/a", "t3")] {
        checked.status(&get(path).token(token)).await;
    }
    assert_eq!(
        world.count(RIGHTS),
        3,
        "by path and groups; the third token is the same user as the first"
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_nobody_keeps_is_asked_for_each_time() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &[]);
    let checked = Checked::with(&world, |who, _| who.token_webhook_cache_ttl = Duration::ZERO)
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(checked.status(&get("/healthz").token("t1")).await, 200);
    }
    assert_eq!(world.count(TOKENS), 3);
}

#[tokio::test(start_paused = true)]
async fn callers_at_the_same_time_share_one_question() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &[]);
    world.allow("jane", "/metrics");
    world.delay(Duration::from_secs(1));
    let checked = Checked::with(&world, |who, _| who.skip_lookup = true)
        .await
        .unwrap();
    let calls: Vec<_> = (0..50).map(|_| get("/metrics").token("t1")).collect();
    let answers = join_all(calls.iter().map(|call| checked.status(call))).await;
    assert_eq!(answers, [200; 50]);
    assert_eq!((world.count(TOKENS), world.count(RIGHTS)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_tried_again_and_never_kept() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &[]);
    let checked = Checked::new(&world).await;
    let call = get("/healthz").token("t1");
    let asked = |world: &FakeApiServer| world.count(TOKENS);
    world.fail(&[500, 429, 503, 504]);
    let started = Instant::now();
    assert_eq!(checked.status(&call).await, 200);
    assert_eq!(asked(&world), 5);
    // 0.5 + 0.75 + 1.125 + 1.6875, each up to a fifth longer.
    let took = started.elapsed().as_secs_f64();
    assert!((4.06..4.9).contains(&took), "{took}");

    let call = get("/healthz").token("t2");
    world.fail(&[500; 5]);
    assert_eq!(checked.status(&call).await, 401, "as upstream");
    assert_eq!(asked(&world), 10);
    assert_eq!(checked.status(&call).await, 401, "asked again");
    world.fail(&[403]);
    assert_eq!(checked.status(&get("/healthz").token("t3")).await, 401, "without the right to ask");
    assert_eq!(asked(&world), 12, "once: it will not pass");
    for (label, want) in [("201", "2"), ("500", "6"), ("403", "1"), ("429", "1")] {
        assert_eq!(
            checked.metric("apiserver_delegated_authn_request_total", label),
            want,
            "{label}"
        );
    }
    assert_eq!(checked.metric("authentication_attempts", "success"), "1");
    assert_eq!(checked.metric("authentication_attempts", "error"), "3");
    assert_eq!(checked.metric("authorization_attempts_total", "allowed"), "1");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_is_no_permission() {
    let world = FakeApiServer::new();
    let checked = Checked::new(&world).await;
    world.delay(Duration::from_secs(3600));
    let started = Instant::now();
    assert_eq!(checked.status(&get("/metrics")).await, 500);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    assert_eq!(checked.status(&get("/healthz")).await, 200, "health needs nobody");
    assert_eq!(checked.metric("apiserver_delegated_authz_request_total", "<error>"), "1");
    assert_eq!(checked.metric("authorization_attempts_total", "error"), "1");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_turned_away_and_stops_nobody_who_need_not_be_asked_about() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &["system:masters"]);
    let checked = Checked::new(&world).await;
    let known = get("/configz").token("t1");
    assert_eq!(checked.status(&known).await, 200);
    let calls: Vec<_> = (0..3000)
        .map(|number| get("/metrics").token(&format!("x{number}")))
        .collect();
    let flood = join_all(calls.iter().map(|call| checked.status(call)));
    let meanwhile = async {
        sleep(Duration::from_secs(5)).await;
        assert_eq!(checked.status(&known).await, 200, "its answer is kept");
        assert_eq!(checked.status(&get("/healthz")).await, 200);
    };
    let started = Instant::now();
    let flood = async { (flood.await, started.elapsed()) };
    let ((answers, took), ()) = tokio::join!(flood, meanwhile);
    let count = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!((count(401), count(429)), (500, 2500));
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(world.count(TOKENS), 501);
    assert_eq!(checked.status(&get("/metrics").token("y")).await, 401, "there is room again");
    let busy = AuthRefusal::too_many_requests().response();
    assert_eq!(
        (busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()),
        (429, "1")
    );
    assert!(String::from_utf8_lossy(busy.body()).contains(r#""reason":"TooManyRequests""#));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_keeps_no_withdrawn_ca_believed() {
    let (world, ca) = (FakeApiServer::new(), Ca::new("ca"));
    world.config_map(&[("client-ca-file", &ca.pem)]);
    let checked = Checked::new(&world).await;
    let stop = CancellationToken::new();
    let by_ca = get("/healthz").peer(&ca.client("a", &[]));
    assert_eq!(checked.call(&by_ca).await.unwrap().name, "a");
    let (number, flooding) = (AtomicUsize::new(0), stop.clone());
    let attack = || async {
        // Only what lies before the next reading matters.
        sleep(Duration::from_secs(55)).await;
        while !flooding.is_cancelled() {
            let call =
                get("/metrics").token(&format!("x{}", number.fetch_add(1, Ordering::Relaxed)));
            if checked.status(&call).await == 429 {
                sleep(Duration::from_millis(500)).await;
            }
        }
    };
    let withdraw = async {
        sleep(Duration::from_secs(1)).await;
        world.config_map(&[]);
        // The reading of each minute, and a moment for the question.
        sleep(Duration::from_secs(60)).await;
        let caller = checked.call(&by_ca).await.unwrap();
        stop.cancel();
        assert!(caller.is_anonymous(), "{caller:?}");
    };
    tokio::join!(checked.auth.run(stop.clone()), join_all((0..3000).map(|_| attack())), withdraw);
}

/// The text of all logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn no_token_is_in_log_metrics_or_debug_output() {
    let (log, world) = (Log::default(), FakeApiServer::new());
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let checked = Checked::new(&world).await;
    // This server's failures repeat what was sent.
    for codes in [&[][..], &[400], &[500; 5]] {
        world.fail(codes);
        let refusal = checked
            .call(&get("/metrics").token("s3cr3t"))
            .await
            .unwrap_err();
        advance(Duration::from_secs(20)).await;
        assert!(
            !format!("{refusal:?} {:?} {:?}", refusal.response(), checked.auth).contains("s3cr3t")
        );
    }
    world.answer_with("s3cr3t");
    checked
        .call(&get("/metrics").token("s3cr3t"))
        .await
        .unwrap_err();
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(text.contains("cannot be authenticated") && text.contains("<token>"), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
    assert!(!format!("{:?}", checked.registry.gather()).contains("s3cr3t"));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refusals_is_told_seldom() {
    let (log, world) = (Log::default(), FakeApiServer::new());
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let checked = Checked::new(&world).await;
    for number in 0..100 {
        checked
            .call(&get("/metrics").token(&format!("t{number}")))
            .await
            .unwrap_err();
    }
    let lines = |log: &Log| {
        String::from_utf8_lossy(&log.0.lock())
            .matches("are not accepted")
            .count()
    };
    assert_eq!(lines(&log), 1);
    advance(Duration::from_secs(11)).await;
    checked.call(&get("/metrics").token("t")).await.unwrap_err();
    assert_eq!(lines(&log), 2);
}

fn key(number: usize) -> Key {
    let mut key = Key::default();
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

#[tokio::test(start_paused = true)]
async fn no_more_answers_are_kept_than_fit() {
    let answers = ReviewCache::<usize>::new(3, 2);
    for number in 0..10 {
        let ttl = Duration::from_secs(10);
        assert_eq!(
            answers
                .get(key(number), || async move { Ok((number, ttl)) })
                .await,
            Ok(number)
        );
        let (kept, ends, asking) = answers.sizes();
        assert!(kept <= 3 && ends == kept && asking == 0, "{kept} {ends} {asking}");
    }
    let again = |number| answers.get(key(number), || async { Ok((99, Duration::from_secs(1))) });
    assert_eq!((again(9).await, again(0).await), (Ok(9), Ok(99)), "the ones that end first went");
    sleep(Duration::from_secs(11)).await;
    assert_eq!(again(9).await, Ok(99));
    assert_eq!(answers.sizes(), (1, 1, 0), "what has ended makes room");
}

#[tokio::test(start_paused = true)]
async fn no_more_questions_are_pending_than_may() {
    let answers = ReviewCache::<usize>::new(3, 2);
    let slow = |number| {
        answers.get(key(number), move || async move {
            sleep(Duration::from_secs(1)).await;
            Ok((number, Duration::from_secs(10)))
        })
    };
    let (one, two, same, more) = tokio::join!(slow(1), slow(2), slow(1), slow(3));
    assert_eq!((one, two, same, more), (Ok(1), Ok(2), Ok(1), Err(ReviewError::Busy)));
    assert_eq!((slow(3).await, slow(1).await), (Ok(3), Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_question_outlives_whoever_asked_first_but_not_all() {
    let (answers, asked) =
        (Arc::new(ReviewCache::<usize>::new(3, 2)), Arc::new(AtomicUsize::new(0)));
    let ask = || {
        let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
        async move {
            let question = || async move {
                asked.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_secs(2)).await;
                Ok((7, Duration::from_secs(10)))
            };
            answers.get(key(1), question).await
        }
    };
    let (first, second) = (tokio::spawn(ask()), tokio::spawn(ask()));
    sleep(Duration::from_secs(1)).await;
    first.abort();
    assert_eq!(second.await.unwrap(), Ok(7));
    assert_eq!((asked.load(Ordering::SeqCst), answers.sizes()), (1, (1, 1, 0)));

    sleep(Duration::from_secs(11)).await;
    let alone = tokio::spawn(ask());
    sleep(Duration::from_secs(1)).await;
    alone.abort();
    assert!(alone.await.unwrap_err().is_cancelled());
    assert_eq!(answers.sizes().2, 0, "given up");
    assert_eq!(ask().await, Ok(7));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failure_reaches_all_who_wait_and_nobody_after() {
    let answers = ReviewCache::<usize>::new(3, 2);
    let failing = || async {
        sleep(Duration::from_secs(1)).await;
        Err(ReviewError::failed("down"))
    };
    let both = tokio::join!(answers.get(key(1), failing), answers.get(key(1), failing));
    assert_eq!(both, (Err(ReviewError::failed("down")), Err(ReviewError::failed("down"))));
    assert_eq!(
        answers
            .get(key(1), || async { Ok((1, Duration::ZERO)) })
            .await,
        Ok(1)
    );
    assert_eq!(answers.sizes(), (0, 0, 0));
}
