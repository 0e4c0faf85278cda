//! The commands of the guides: each is tried by some test, or there is a reason why not.

use std::collections::BTreeSet;

use crate::cases;
use crate::docs;
use crate::guides::{self, TRIALS, Trial};
use crate::helm::{Helm, chart, root};
use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        every_command_of_the_guides_is_tried_or_there_is_a_reason,
        commands_are_only_in_blocks_that_are_read,
    ];
    cases.extend(needing(
        ccm_testkit::control_plane::helm().err(),
        cases![helm_renders_what_the_guides_install],
    ));
    cases
}

fn every_command_of_the_guides_is_tried_or_there_is_a_reason() -> anyhow::Result<()> {
    let commands = guides::all(&root())?;
    assert!(commands.len() > 60, "only {} commands: are they still read?", commands.len());
    let mut wrong = Vec::new();
    for command in &commands {
        match command.trial() {
            Ok(Trial::Test(name)) if !docs::is_test(name)? => {
                wrong.push(format!("{}: there is no test {name}", command.place));
            }
            Ok(Trial::Nobody("")) => wrong.push(format!("{}: there is no reason", command.place)),
            Ok(_) => {}
            Err(error) => wrong.push(error.to_string()),
        }
    }
    // What no command needs any more would excuse the next one that begins so.
    let used: BTreeSet<_> = commands
        .iter()
        .filter_map(|command| {
            TRIALS
                .iter()
                .position(|(beginning, _)| command.text.starts_with(beginning))
        })
        .collect();
    let unused = (0..TRIALS.len()).filter(|at| !used.contains(at));
    wrong.extend(unused.map(|at| format!("no command begins with {:?}", TRIALS[at].0)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn commands_are_only_in_blocks_that_are_read() -> anyhow::Result<()> {
    let read = |label: &str, line: &str| {
        guides::of_page("page.md", &format!("Text.\n\n```{label}\n{line}\n```\n"))
    };
    for line in ["kubectl get nodes", "  $ helm list", "ccm-aws orphans", "curl example.org"] {
        let commands = read("sh", line)?;
        assert_eq!(commands.len(), 1, "{line}: {commands:?}");
        for label in ["text", "bash", ""] {
            let error = read(label, line).map_err(|error| error.to_string());
            let error = error.expect_err(label);
            assert!(error.starts_with("page.md:3: "), "{error}");
        }
    }
    for output in ["NAME   TAINTS", "to delete, add --delete", "deployment/kubectl created"] {
        assert!(read("text", output)?.is_empty(), "{output}");
    }
    Ok(())
}

fn helm_renders_what_the_guides_install() -> anyhow::Result<()> {
    let helm = Helm::find()?;
    let folder = tempfile::tempdir()?;
    guides::prepare_folder(&root(), folder.path())?;
    let commands = guides::tried(&root(), Trial::Helm)?;
    assert!(commands.len() >= 5, "{commands:?}");
    for command in &commands {
        let words: Vec<_> = words(&command.text)
            .into_iter()
            .skip(2)
            .map(|word| match &*word {
                "charts/cloud-controller-manager" => chart().display().to_string(),
                "values.yaml" => folder.path().join(word).display().to_string(),
                _ => word,
            })
            .collect();
        let rendered = helm.run(std::iter::once("template".to_owned()).chain(words));
        let rendered = rendered.map_err(|error| error.context(command.place.clone()))?;
        assert!(rendered.contains("\nkind: ServiceAccount\n"), "{}", command.place);
    }
    Ok(())
}

/// The words of a command, as a shell reads single quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (at, part) in command.split('\'').enumerate() {
        if at % 2 == 1 {
            words.last_mut().unwrap().push_str(part);
            continue;
        }
        let mut pieces = part.split(' ');
        words
            .last_mut()
            .unwrap()
            .push_str(pieces.next().unwrap_or_default());
        words.extend(pieces.map(str::to_owned));
    }
    words.retain(|word| !word.is_empty());
    words
}
