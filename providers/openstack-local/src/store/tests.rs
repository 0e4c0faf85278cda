use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{
    Database, DatabaseError, ReadableDatabase, StorageBackend, TableDefinition,
    backends::FileBackend,
};

use super::{disk::Open, *};
use crate::keystone::Region;

fn region(id: &str, description: &str) -> Region {
    Region { id: id.to_owned(), description: description.to_owned() }
}

fn put(id: &str, description: &str) -> impl FnOnce(&mut CloudState) -> Result<(), ApiError> {
    let row = region(id, description);
    move |state| {
        state.keystone.regions.put(row);
        Ok(())
    }
}

fn ids(store: &Store) -> Vec<String> {
    store.peek(|state| {
        state
            .keystone
            .regions
            .iter()
            .map(|region| region.id.clone())
            .collect()
    })
}

#[tokio::test]
async fn what_was_changed_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for id in ["a", "b", "c"] {
        store.change(put(id, "first")).await.unwrap();
    }
    store.change(put("a", "second")).await.unwrap();
    let removed = store
        .change(|state| Ok(state.keystone.regions.remove("b").is_some()))
        .await
        .unwrap();
    assert!(removed);
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(ids(&store), ["a", "c"]);
    assert_eq!(
        store.peek(|state| state.keystone.regions.get("a").unwrap().description.clone()),
        "second"
    );
}

#[tokio::test]
async fn a_change_that_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for store in [Store::in_memory(), Store::open(dir.path()).unwrap()] {
        store.change(put("a", "first")).await.unwrap();
        let refused = store.change(|state| {
            state.keystone.regions.put(region("a", "second"));
            state.keystone.regions.put(region("b", ""));
            state.keystone.regions.remove("a");
            Err::<(), _>(ApiError::conflict("", "no"))
        });
        assert_eq!(refused.await.unwrap_err().status, 409);
        assert_eq!(ids(&store), ["a"]);
        store.change(put("c", "")).await.unwrap();
    }
    assert_eq!(ids(&Store::open(dir.path()).unwrap()), ["a", "c"], "on disk");
}

#[tokio::test]
async fn a_change_that_panics_leaves_nothing_behind() {
    let store = Arc::new(Store::in_memory());
    let panicking = store.clone();
    let task = tokio::spawn(async move {
        let change = |state: &mut CloudState| -> Result<(), ApiError> {
            state.keystone.regions.put(region("a", ""));
            panic!("as asked")
        };
        panicking.change(change).await
    });
    assert!(task.await.unwrap_err().is_panic());
    assert!(ids(&store).is_empty());
    store.change(put("b", "")).await.unwrap();
    assert_eq!(ids(&store), ["b"]);
}

#[tokio::test]
async fn changes_at_once_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path()).unwrap());
    let changes = (0..500).map(|number| {
        let store = store.clone();
        async move { store.change(put(&format!("{number:03}"), "")).await }
    });
    for result in futures::future::join_all(changes).await {
        result.unwrap();
    }
    drop(store);
    assert_eq!(ids(&Store::open(dir.path()).unwrap()).len(), 500);
}

#[tokio::test(start_paused = true)]
async fn changes_are_told() {
    let store = Store::in_memory();
    let mut changes = store.changes();
    store.change(put("a", "")).await.unwrap();
    assert!(changes.next().await);
    // Nothing is said about what changes nothing.
    store.change(|_| Ok(())).await.unwrap();
    drop(
        store
            .change(|_| Err::<(), _>(ApiError::conflict("", "no")))
            .await,
    );
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(1), changes.next()).await;
    assert!(quiet.is_err(), "told of no change");
    drop(store);
    assert!(!changes.next().await);
}

fn open_error(dir: &Path) -> StoreError {
    Store::open(dir).expect_err("the directory cannot be used")
}

#[tokio::test]
async fn a_directory_is_used_by_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let error = open_error(dir.path());
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    drop(store);
    Store::open(dir.path()).unwrap();
}

#[tokio::test]
async fn what_is_no_state_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.redb");
    let store = Store::open(dir.path()).unwrap();
    let changes = (0..100).map(|number| {
        let store = &store;
        async move { store.change(put(&number.to_string(), "")).await.unwrap() }
    });
    futures::future::join_all(changes).await;
    drop(store);
    let whole = fs::read(&file).unwrap();
    let half = &whole[..whole.len() / 2];
    let mut scrambled = whole.clone();
    scrambled[4096..].iter_mut().for_each(|byte| *byte ^= 0x5a);
    for (what, bytes) in
        [("text", &b"no database at all"[..]), ("cut", half), ("scrambled", &scrambled)]
    {
        fs::write(&file, bytes).unwrap();
        let error = open_error(dir.path());
        assert!(matches!(error, StoreError::Corrupt { .. }), "{what}: {error:?}");
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{what}: {error}");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(ids(&Store::open(dir.path()).unwrap()).len(), 100);
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_refused() {
    let write = |table: &str, value: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let database = Database::open(dir.path().join("state.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        let definition: TableDefinition<'_, &str, &[u8]> = TableDefinition::new(table);
        transaction
            .open_table(definition)
            .unwrap()
            .insert("key", value)
            .unwrap();
        transaction.commit().unwrap();
        drop(database);
        (open_error(dir.path()), dir)
    };
    let (error, _dir) = write("neutron.wormholes", b"{}");
    assert!(matches!(error, StoreError::Newer { .. }), "{error:?}");
    assert!(error.to_string().contains("neutron.wormholes"), "{error}");
    let (error, _dir) = write("keystone.regions", b"{\"id\": 1}");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("keystone.regions key"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let database = Database::open(dir.path().join("state.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let definition: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
    transaction
        .open_table(definition)
        .unwrap()
        .insert("version", 2)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = open_error(dir.path());
    assert!(matches!(error, StoreError::Newer { .. }), "{error:?}");
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let below = dir.path().join("file/state");
    let error = open_error(&below);
    assert!(matches!(error, StoreError::Directory { .. }), "{error:?}");
    assert!(error.to_string().contains(below.to_str().unwrap()), "{error}");
}

/// A disk that fails on demand.
#[derive(Debug)]
struct Failing {
    inner: FileBackend,
    fails: Arc<AtomicBool>,
}

impl Failing {
    fn check(&self) -> std::io::Result<()> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other("no space left")),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Failing {
    fn len(&self) -> std::io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.check()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.check()?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.check()?;
        self.inner.write(offset, data)
    }
}

#[derive(Debug)]
struct FailingFiles {
    dir: std::path::PathBuf,
    fails: Arc<AtomicBool>,
}

impl Open for FailingFiles {
    fn open(&self) -> Result<Database, DatabaseError> {
        let path = self.dir.join("state.redb");
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let inner = FileBackend::new(file)?;
        Database::builder().create_with_backend(Failing { inner, fails: self.fails.clone() })
    }

    fn dir(&self) -> &Path {
        &self.dir
    }
}

#[tokio::test]
async fn a_disk_that_fails_loses_nothing_and_is_used_again_when_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let files = FailingFiles { dir: dir.path().to_owned(), fails: fails.clone() };
    let store = Store::on(Box::new(files), |_| ()).unwrap();
    store.change(put("a", "")).await.unwrap();

    fails.store(true, Ordering::SeqCst);
    let refused = store.change(put("b", "")).await.unwrap_err();
    assert_eq!(refused.status, 503);
    // What was refused is not to be seen, whatever else can be.
    let seen = store
        .read(|state| Ok(state.keystone.regions.get("b").is_some()))
        .await;
    assert_ne!(seen, Ok(true), "refused, and seen");

    fails.store(false, Ordering::SeqCst);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while store.change(put("c", "")).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the store never worked again");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(ids(&store), ["a", "c"]);
    drop(store);
    assert_eq!(ids(&Store::open(dir.path()).unwrap()), ["a", "c"]);
}

#[tokio::test]
async fn nothing_is_read_that_is_not_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let change = store.change(put("a", ""));
    let read = store.read(|state| Ok(state.keystone.regions.len()));
    let (changed, seen) = tokio::join!(change, read);
    changed.unwrap();
    assert_eq!(seen.unwrap(), 1);
    // The database has it, although this process has not closed it: another reader would find it.
    let copy = tempfile::tempdir().unwrap();
    fs::copy(dir.path().join("state.redb"), copy.path().join("state.redb")).unwrap();
    let database = Database::open(copy.path().join("state.redb")).unwrap();
    let transaction = database.begin_read().unwrap();
    let definition: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keystone.regions");
    assert!(
        transaction
            .open_table(definition)
            .unwrap()
            .get("a")
            .unwrap()
            .is_some()
    );
}

#[test]
fn only_the_owner_may_read_what_is_stored() {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cloud");
    drop(Store::open(&dir).unwrap());
    let file = dir.join("state.redb");
    assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
    // A file of an earlier release.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    // A directory that somebody made keeps its mode.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
    drop(Store::open(&dir).unwrap());
    assert_eq!((mode(&dir), mode(&file)), (0o750, 0o600));
}
