//! The guide for authors of providers is true: its code is the example's, its commands lead to a
//! provider that passes the kit, and both examples are as short as it says. Following its commands
//! builds everything a second time, as an author does: that is for `cargo xtask test --full`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use ccm_core::config::GenericConfig;
use ccm_meadow::Config;
use ccm_testkit::suite::Tier;
use libtest_mimic::{Arguments, Trial};

/// What the names of variables begin with that say something of our build alone.
const OURS: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS"];
/// The examples, and the most lines that each has beyond the template.
const EXAMPLES: [(&str, &str, usize); 2] = [("meadow", "Meadow", 270), ("quarry", "Quarry", 300)];

fn main() -> ExitCode {
    let chosen = Tier::chosen().unwrap();
    let case = |tier: Tier, name: &str, check: fn()| -> Option<Trial> {
        let run = move || {
            check();
            Ok(())
        };
        tier.case(chosen, name, None::<&str>, run)
    };
    let cases = [
        case(Tier::Quick, "guide/code", the_code_of_the_guide_is_that_of_the_example),
        case(Tier::Quick, "guide/cloud-config", the_cloud_config_of_the_guide_is_read),
        case(Tier::Quick, "guide/lines", the_examples_are_as_short_as_the_guide_says),
        case(
            Tier::Full,
            "guide/new-author",
            a_new_author_gets_from_the_template_to_the_passing_kit,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), cases.into_iter().flatten().collect()).exit_code()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn guide_path() -> PathBuf {
    root().join("docs/providers/writing-a-provider.md")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// A fenced block: what stands behind the fence, and the lines between, with the numbers of the
/// first and the one after the last.
struct Block<'a> {
    label: &'a str,
    text: String,
    lines: (usize, usize),
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = page.lines().collect();
    let fences: Vec<usize> = (0..lines.len())
        .filter(|at| lines[*at].starts_with("```"))
        .collect();
    assert!(fences.len().is_multiple_of(2), "a code block is not closed");
    let block = |pair: &[usize]| Block {
        label: lines[pair[0]].trim_start_matches('`'),
        text: lines[pair[0] + 1..pair[1]]
            .iter()
            .flat_map(|line| [*line, "\n"])
            .collect(),
        lines: (pair[0] + 1, pair[1]),
    };
    fences.chunks(2).map(block).collect()
}

/// The files that the guide shows, whole, in blocks labelled `rust <path>`.
fn shown<'a>(blocks: &'a [Block<'a>]) -> BTreeMap<&'a str, Vec<&'a Block<'a>>> {
    let mut files: BTreeMap<&str, Vec<&Block<'_>>> = BTreeMap::new();
    for block in blocks {
        match block.label.split_once(' ') {
            Some(("rust", file)) => files.entry(file).or_default().push(block),
            _ => assert!(
                matches!(block.label, "sh" | "yaml"),
                "nothing checks a block of {:?}",
                block.label
            ),
        }
    }
    files
}

fn joined(blocks: &[&Block<'_>]) -> String {
    blocks
        .iter()
        .map(|block| block.text.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Cuts a file where the blocks of the guide begin: each at the line that it begins with now.
fn cut(file: &str, source: &str, blocks: &[&Block<'_>]) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut starts: Vec<usize> = vec![0];
    for block in &blocks[1..] {
        let first = block.text.lines().next().unwrap_or_default();
        let found: Vec<usize> = (0..lines.len()).filter(|at| lines[*at] == first).collect();
        let [start] = found[..] else {
            panic!("{file} has {first:?} {} times: begin the block elsewhere", found.len())
        };
        starts.push(start);
    }
    starts.push(lines.len());
    let part = |pair: &[usize]| lines[pair[0]..pair[1]].join("\n").trim_end().to_owned() + "\n";
    starts.windows(2).map(part).collect()
}

/// `CCM_UPDATE_REFERENCE=1` writes the example's code into the blocks.
fn the_code_of_the_guide_is_that_of_the_example() {
    let page = fs::read_to_string(guide_path()).unwrap();
    let blocks = blocks(&page);
    let files = shown(&blocks);
    let sources: Vec<_> = fs::read_dir(root().join("examples/meadow/src"))
        .unwrap()
        .map(|file| file.unwrap())
        .collect();
    for source in sources {
        let name = format!("src/{}", source.file_name().to_string_lossy());
        assert!(files.contains_key(&*name), "the guide does not show {name}");
    }
    let mut replaced: Vec<(&Block<'_>, String)> = Vec::new();
    let mut wrong = Vec::new();
    for (file, blocks) in &files {
        let source = read(Path::new("examples/meadow").join(file));
        if joined(blocks) != source {
            wrong.push(*file);
            replaced.extend(blocks.iter().copied().zip(cut(file, &source, blocks)));
        }
    }
    if env::var_os("CCM_UPDATE_REFERENCE").is_some() && !wrong.is_empty() {
        replaced.sort_by_key(|(block, _)| std::cmp::Reverse(block.lines));
        let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
        for (block, text) in replaced {
            lines.splice(block.lines.0..block.lines.1, text.lines().map(str::to_owned));
        }
        fs::write(guide_path(), lines.join("\n") + "\n").unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "other than in the example: {wrong:?}; CCM_UPDATE_REFERENCE=1 cargo test -p ccm-meadow guide"
    );
}

fn the_cloud_config_of_the_guide_is_read() {
    let page = fs::read_to_string(guide_path()).unwrap();
    let blocks = blocks(&page);
    let configs: Vec<_> = blocks
        .iter()
        .filter(|block| block.label == "yaml")
        .collect();
    assert_eq!(configs.len(), 1);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &configs[0].text).unwrap();
    let generic = GenericConfig {
        cloud_config: Some(file.path().to_owned()),
        ..GenericConfig::default()
    };
    let config: Config = generic.read_cloud_config().unwrap();
    assert_eq!((&*config.url, &*config.token), ("https://api.meadow.example", "meadow-token"));
}

/// Lines of code, by file: those with a letter or a digit that are no comments. Closing brackets are
/// free.
fn lines(folder: &str) -> BTreeMap<String, Vec<String>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let text = read(&path);
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .filter(|line| line.contains(char::is_alphanumeric))
            .map(str::to_owned)
            .collect();
        files.insert(path.file_name().unwrap().to_string_lossy().into_owned(), lines);
    }
    files
}

/// Every line of code in `src` counts that is not in the template under another name already. The
/// guide has the numbers.
fn the_examples_are_as_short_as_the_guide_says() {
    let page = fs::read_to_string(guide_path()).unwrap();
    for (package, provider, most) in EXAMPLES {
        let mut template: Vec<String> = lines("template/src").into_values().flatten().collect();
        for line in &mut template {
            *line = line.replace("acme", package).replace("Acme", provider);
        }
        let (mut whole, mut own, mut rows) = (0, 0, Vec::new());
        for (file, lines) in lines(&format!("examples/{package}/src")) {
            let mut new = 0;
            for line in &lines {
                match template.iter().position(|known| known == line) {
                    Some(known) => drop(template.swap_remove(known)),
                    None => new += 1,
                }
            }
            rows.push(format!("| `src/{file}` | {} | {new} |", lines.len()));
            whole += lines.len();
            own += new;
        }
        rows.push(format!("| together | {whole} | {own} |"));
        let rows = rows.join("\n");
        assert!(own <= most, "{package}: {own} lines, more than {most}:\n{rows}");
        assert!(page.contains(&rows), "the guide lacks this table of {package}:\n{rows}");
    }
}

/// Copies and renames the template as the guide says, pastes the guide's code, and runs the kit:
/// once empty, once complete. Needs no network: the crates are those of the workspace's lock file.
fn a_new_author_gets_from_the_template_to_the_passing_kit() {
    let page = fs::read_to_string(guide_path()).unwrap();
    let blocks = blocks(&page);
    let commands: Vec<_> = blocks
        .iter()
        .filter(|block| block.label == "sh")
        .map(|block| block.text.as_str())
        .collect();
    let [copy, first_tests, stand_in, all_tests] = commands[..] else {
        panic!("{} blocks of commands", commands.len())
    };
    // Always the same places, so that what is built there is built over and does not pile up. An
    // author's build has other features than ours: in our folder each of the two would have the
    // other compile from `ring` upwards again.
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (folder, target) = (temporary.join("guide"), temporary.join("guide-target"));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    let run = |place: &Path, commands: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-euc", commands])
            .current_dir(place)
            .env("FRAMEWORK", root());
        // An author's shell knows nothing of this package, and neither do build scripts that would
        // run again for it.
        for (name, _) in env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| OURS.iter().any(|ours| name.starts_with(ours)))
            {
                shell.env_remove(name);
            }
        }
        // Nothing from a network.
        shell
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_NET_OFFLINE", "true");
        let output = shell.output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{commands}\n{text}");
        text.into_owned()
    };
    run(&folder, copy);
    let place = folder.join("ccm-meadow");
    let printed = run(&place, first_tests);
    assert!(printed.contains("test instances - should panic ... ok"), "{printed}");
    for (file, blocks) in shown(&blocks) {
        fs::write(place.join(file), joined(&blocks)).unwrap();
    }
    run(&place, stand_in);
    let printed = run(&place, all_tests);
    for suite in ["instances", "routes", "load_balancers", "sockets::load_balancers_over_sockets"] {
        assert!(printed.contains(&format!("test {suite} ... ok")), "{printed}");
    }
}
