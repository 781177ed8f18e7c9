//! The README's quick start, as it stands there.

use std::process::{Command, Stdio};

use crate::support::{Finished, alone, root, skipped};

#[test]
fn the_quick_start_of_the_readme_works() {
    if !Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return skipped("the_quick_start_of_the_readme_works", "python3");
    }
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once("## Your own two services").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let blocks: Vec<&str> = section.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 3, "the section has its blocks of commands");
    // The first block builds and goes to the example; the test has its binaries and works in a copy.
    let commands = blocks[1..].join("\n");
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(root().join("examples/quickstart")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let binaries = std::path::Path::new(env!("CARGO_BIN_EXE_aftershock")).parent().unwrap();
    let mut paths = vec![binaries.to_path_buf()];
    if !binaries.join("aftershock-proxy").exists() {
        // Without the lean binary beside it, the big one runs the sidecar.
        let shim = folder.path().join("aftershock-proxy");
        std::fs::write(&shim, "#!/bin/sh\nexec aftershock proxy \"$@\"\n").unwrap();
        std::fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        paths.push(folder.path().to_path_buf());
    }
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let script = format!("set -e\ntrap 'trap - EXIT; kill $(jobs -p) 2>/dev/null; wait' EXIT\n{commands}\n");
    let _alone = alone();
    let finished: Finished = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PATH", std::env::join_paths(paths).unwrap())
        .env_remove("AFTERSHOCK_CONTROLLER")
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into();
    let finished = finished.expect(0);
    for expected in ["10 clean rounds recorded", "1 × injected, oracle violated", "one reservation per order"] {
        assert!(finished.stdout.contains(expected), "{expected:?} in:\n{}\n{}", finished.stdout, finished.stderr);
    }
}
