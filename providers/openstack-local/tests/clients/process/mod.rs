//! `openstack-local` as a process: it serves, explains what is wrong, ends when told, and loses
//! nothing when killed.

mod cloud;
#[cfg(feature = "nodes")]
pub(crate) mod machines;
pub(crate) mod traffic;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use cloud::{Cloud, password, run};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

/// How often the process is killed in every run of the tests, and in the nightly one.
const KILLS: usize = 20;
const NIGHTLY_KILLS: usize = 50;
/// Chooses other moments for the kills than those of every run: a number.
const SEED: &str = "CCM_KILL_SEED";
/// Longest time for all kills, after which fewer must do.
const TIME: Duration = Duration::from_secs(120);
/// Writers at once.
const WRITERS: usize = 8;

pub(crate) async fn the_cloud_serves_until_it_is_told_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let token = cloud.token("admin", &password(dir.path(), "admin")).await;
    assert_eq!(cloud.get("/identity/v3/projects", &token).await.0, 200);
    cloud.terminate().await;
    // Tokens are good after a restart, and passwords stay.
    let cloud = Cloud::start(dir.path()).await;
    assert_eq!(cloud.get("/identity/v3/projects", &token).await.0, 200);
    cloud.token("demo", &password(dir.path(), "demo")).await;
    cloud.terminate().await;
}

pub(crate) async fn bad_arguments_and_directories_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let (code, error) = run(&["serve", "--state", state, "--listen", "0.0.0.0:0"]).await;
    assert!(
        code == 1 && error.contains("--listen 0.0.0.0:0") && error.contains("--allow-non-loopback"),
        "{error}"
    );
    let (code, error) = run(&["credentials", "--state", state]).await;
    assert!(code == 1 && error.contains("before the cloud first served"), "{error}");

    let cloud = Cloud::start(dir.path()).await;
    let (code, error) = run(&["serve", "--state", state, "--listen", "127.0.0.1:0"]).await;
    assert!(code == 1 && error.contains(state) && error.contains("another process"), "{error}");
    let (code, error) = run(&["credentials", "--state", state, "--user", "nobody"]).await;
    assert!(code == 1 && error.contains("admin, demo"), "{error}");
    let taken = cloud.address.to_string();
    let other = tempfile::tempdir().unwrap();
    let (code, error) =
        run(&["serve", "--state", other.path().to_str().unwrap(), "--listen", &taken]).await;
    assert!(code == 1 && error.contains(&taken), "{error}");
    cloud.terminate().await;

    std::fs::write(dir.path().join("state.redb"), "no database").unwrap();
    let (code, error) = run(&["serve", "--state", state, "--listen", "127.0.0.1:0"]).await;
    assert!(code == 1 && error.contains(state) && error.contains("corrupt"), "{error}");
}

pub(crate) async fn credentials_are_for_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    Cloud::start(dir.path()).await.terminate().await;
    let file = dir.path().join("credentials.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let first = password(dir.path(), "admin");
    // Without the file the users get new passwords.
    std::fs::remove_file(&file).unwrap();
    let cloud = Cloud::start(dir.path()).await;
    let second = password(dir.path(), "admin");
    assert_ne!(first, second);
    cloud.token("admin", &second).await;
    cloud.terminate().await;
}

pub(crate) async fn passwords_and_tokens_are_not_logged() {
    let (dir, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let cloud = Cloud::talkative(dir.path(), &["--test-hooks"], log.path()).await;
    let mut secrets = vec![
        password(dir.path(), "admin"),
        password(dir.path(), "demo"),
        "wr0ng-password".to_owned(),
    ];
    for user in ["admin", "demo"] {
        let token = cloud.token(user, &password(dir.path(), user)).await;
        assert_eq!(cloud.get("/identity/v3/auth/projects", &token).await.0, 200);
        secrets.push(token);
    }
    let user = json!({"name": "demo", "domain": {"id": "default"}, "password": "wr0ng-password"});
    let auth = json!({"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}});
    let (status, refused) = cloud
        .try_send("POST", "/identity/v3/auth/tokens", "", Some(auth))
        .await
        .unwrap();
    let wrong = cloud
        .get("/identity/v3/auth/projects", "wr0ng-password")
        .await;
    assert_eq!((status, wrong.0), (401, 401));
    let journal = cloud.get("/admin/journal", "").await;
    cloud.terminate().await;
    let text = std::fs::read_to_string(log.path()).unwrap();
    // There was something to see; the log has little to say of requests at any level.
    assert!(journal.1.to_string().contains("/identity/v3/auth/tokens"), "{}", journal.1);
    let all = format!("{text}{refused}{}{}", wrong.1, journal.1);
    for secret in secrets {
        assert!(!all.contains(&secret), "{secret} is in {all}");
    }
}

pub(crate) async fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let seed = std::env::var(SEED)
        .map_or(Ok(1), |seed| seed.parse())
        .context(SEED)
        .unwrap();
    kill_again_and_again(KILLS, seed).await;
}

/// At other moments each time; a failure names the seed.
pub(crate) async fn no_acknowledged_write_is_lost_at_fifty_kills_by_chance() {
    kill_again_and_again(NIGHTLY_KILLS, rand::random()).await;
}

async fn kill_again_and_again(most: usize, seed: u64) {
    let mut chance = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let mut cloud = Cloud::start(dir.path()).await;
    let admin = password(dir.path(), "admin");
    let token = cloud.token("admin", &admin).await;
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    let mut deleted: Vec<String> = Vec::new();
    let mut kills = 0;
    while kills < most && start.elapsed() < TIME {
        // Anywhere from before the first write to amid many, however fast the machine is.
        let written = Semaphore::new(0);
        let (writes, delay) =
            (chance.random_range(0..60), Duration::from_micros(chance.random_range(0..5000)));
        let writers = (0..WRITERS).map(|writer| {
            let (cloud, token, written, name) =
                (&cloud, &token, &written, format!("p-{kills}-{writer}"));
            async move { write_until_gone(cloud, token, written, &name).await }
        });
        let writers = futures::future::join_all(writers);
        let killer = async {
            drop(
                timeout(TIME, written.acquire_many(writes))
                    .await
                    .unwrap()
                    .unwrap(),
            );
            tokio::time::sleep(delay).await;
            cloud.kill().await;
        };
        let (results, ()) = tokio::join!(writers, killer);
        for (mut created, mut removed) in results {
            acknowledged.append(&mut created);
            deleted.append(&mut removed);
        }
        kills += 1;
        cloud = Cloud::start(dir.path()).await;
        let projects = cloud.projects(&token).await;
        let lost: Vec<_> = acknowledged
            .iter()
            .filter(|(id, name)| !deleted.contains(id) && projects.get(id) != Some(name))
            .collect();
        assert!(lost.is_empty(), "after {kills} kills {lost:?} are gone ({SEED}={seed})");
        let back: Vec<_> = deleted
            .iter()
            .filter(|id| projects.contains_key(*id))
            .collect();
        assert!(back.is_empty(), "after {kills} kills {back:?} are back ({SEED}={seed})");
    }
    assert!(kills >= most / 2, "only {kills} kills in {TIME:?}");
    assert!(
        acknowledged.len() > 2 * kills,
        "{} writes in {kills} kills show nothing",
        acknowledged.len()
    );
    assert!(!deleted.is_empty());
    cloud.terminate().await;
}

/// Makes projects, deletes some again, until nobody answers. Returns what was acknowledged: IDs and
/// names of those made, and IDs of those deleted or about to be.
async fn write_until_gone(
    cloud: &Cloud,
    token: &str,
    written: &Semaphore,
    prefix: &str,
) -> (Vec<(String, String)>, Vec<String>) {
    let (mut created, mut deleted) = (Vec::new(), Vec::new());
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        let body = json!({"project": {"name": name}});
        let Some((201, answer)) = cloud
            .try_send("POST", "/identity/v3/projects", token, Some(body))
            .await
        else {
            break;
        };
        let id = answer["project"]["id"].as_str().unwrap().to_owned();
        created.push((id.clone(), name));
        written.add_permits(1);
        if number % 2 == 1 {
            match cloud
                .try_send("DELETE", &format!("/identity/v3/projects/{id}"), token, None)
                .await
            {
                Some((204, _)) => {
                    deleted.push(id);
                    written.add_permits(1);
                }
                // Nobody knows whether it was done.
                _ => {
                    created.pop();
                    break;
                }
            }
        }
    }
    (created, deleted)
}
