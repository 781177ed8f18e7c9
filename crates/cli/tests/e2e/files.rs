//! Files, arguments and exit codes.

use crate::support::{Finished, aftershock, free_port, root, run};

/// Write `text` to a file and hand its path to `with`.
fn file<T>(name: &str, text: &str, with: impl FnOnce(&str) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    with(path.to_str().unwrap())
}

#[test]
fn usage_errors_end_with_1_and_help_with_0() {
    run(&[]).expect(1);
    let wrong = run(&["inject"]).expect(1);
    assert!(wrong.stderr.contains("--scenario"), "{}", wrong.stderr);
    assert!(run(&["frobnicate"]).expect(1).stderr.contains("frobnicate"));
    for command in
        ["demo", "record", "generate", "inject", "explain", "lab", "control", "status", "disarm", "rounds", "store"]
    {
        let help = run(&[command, "--help"]).expect(0);
        assert!(help.stdout.len() > 200, "{command} --help teaches:\n{}", help.stdout);
    }
    run(&["--version"]).expect(0);
    let sidecar = run(&["proxy", "--help"]).expect(0);
    assert!(sidecar.stdout.contains("--config") && sidecar.stderr.is_empty(), "{}", sidecar.stderr);
    assert!(run(&["proxy"]).expect(1).stderr.contains("--config"));
}

#[test]
fn help_keeps_the_options_of_a_command_apart_from_those_of_its_connection() {
    let commands =
        ["record", "generate", "inject", "explain", "rounds", "status", "disarm"].map(|command| vec![command]);
    for mut command in commands.into_iter().chain([vec!["store", "import"]]) {
        command.push("--help");
        let help = run(&command).expect(0).stdout;
        let (own, connection) = help.split_once("\nController:").unwrap();
        assert!(own.contains("--format") && !connection.contains("--format"), "{command:?}:\n{help}");
        for option in ["--controller", "--token-file", "--ca <", "--cert", "--key", "--insecure-plaintext"] {
            assert!(connection.contains(option) && !own.contains(option), "{command:?} {option}:\n{help}");
        }
    }
}

#[test]
fn the_readme_lists_every_page_of_the_documentation() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        // `bench` beside the pages keeps measurements, which benchmarks.md presents.
        let Some(page) = file.strip_suffix(".md") else { continue };
        let row = format!("| [{page}](docs/{file}) | ");
        assert_eq!(readme.matches(&row).count(), 1, "{row}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let finished: Finished = aftershock(&["schema", "Scenario"]).stdout(full()).output().unwrap().into();
    let finished = finished.expect(1);
    assert!(finished.stderr.contains("failed to write the result"), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("error:").count(), 1, "{}", finished.stderr);
}

#[test]
fn every_file_in_the_repository_is_accepted() {
    let controller = format!("http://127.0.0.1:{}", free_port());
    // Files are read before the controller is asked: what fails is the connection.
    for (scenario, fault) in [
        ("scenarios/online-boutique/checkout.yaml", "scenarios/online-boutique/lost-charge.yaml"),
        ("scenarios/fig2-patterns/checkout.yaml", "scenarios/fig2-patterns/double-charge.yaml"),
        ("scenarios/fig2-patterns/signup.yaml", "scenarios/fig2-patterns/success-before-risk.yaml"),
        ("scenarios/fig2-patterns/page.yaml", "scenarios/fig2-patterns/third-product.yaml"),
    ] {
        let finished = run(&["inject", fault, "--scenario", scenario, "--control", &controller]).expect(1);
        assert!(finished.stderr.contains(&controller["http://".len()..]), "{}", finished.stderr);
    }
}

#[test]
fn a_malformed_file_is_located_and_says_what_was_expected() {
    let good = std::fs::read_to_string(root().join("scenarios/online-boutique/lost-charge.yaml")).unwrap();
    let scenario = root().join("scenarios/online-boutique/checkout.yaml");
    let scenario = scenario.to_str().unwrap();
    for (from, to, place, expected) in [
        ("phase: response", "phaze: response", ":12:", "phase"),
        ("phase: response", "phase: reply", ":12:", "response"),
        ("k: 1", "k: 0", ":11:", "number from 1"),
        ("fault: drop", "fault: vanish", ":14:", "drop"),
        ("pattern: post-effect", "guard: {until: []}", ":15:", "after"),
        ("v1alpha1", "v9", ":2:", "v1alpha1"),
        ("kind: TemporalFault", "kind: Scenario", ":3:", "TemporalFault"),
    ] {
        assert!(good.contains(from), "{from}");
        file("broken.yaml", &good.replacen(from, to, 1), |path| {
            let finished = run(&["inject", path, "--scenario", scenario]).expect(1);
            let located = format!("broken.yaml{place}");
            assert!(finished.stderr.contains(&located), "{to}: {located} in:\n{}", finished.stderr);
            assert!(finished.stderr.contains(expected), "{to}: {expected} in:\n{}", finished.stderr);
            assert_eq!(finished.stdout, "");
        });
    }
}

#[test]
fn schemas_are_printed_for_every_kind() {
    for kind in ["Scenario", "TemporalFault", "Topology", "Sidecar"] {
        let schema = run(&["schema", kind]).expect(0).json();
        assert!(schema["properties"]["apiVersion"].is_object(), "{kind}: {schema}");
    }
}
