//! A kill anywhere leaves the old release or the new one, whole, and the next try ends what was begun.

use crate::rig::{Rig, fails, ok, release};

const PLACES: [&str; 3] = ["harness::staged", "harness::recorded", "harness::switched"];

#[test]
fn a_kill_during_an_update_leaves_one_whole_release() {
    for place in PLACES {
        let rig = Rig::installed("s");
        rig.service.serve(release("r2"));
        let killed = rig
            .install("s", &[])
            .env("FAILPOINTS", format!("{place}=return(kill)"))
            .output()
            .unwrap();
        assert!(
            !killed.status.success() && killed.status.code().is_none(),
            "{place}: {killed:?}"
        );
        let rules = ok(&mut rig.wrapper(&["rules"]));
        let expected = if place == "harness::switched" {
            "Rules of r2.\n"
        } else {
            "Rules of r1.\n"
        };
        assert_eq!(rules, expected, "{place}");
        let there = rig.place("s").join("root-0/pi-agent/skills");
        assert_eq!(
            std::fs::read_dir(there).unwrap().count(),
            1,
            "{place}: one release's files only"
        );
        ok(&mut rig.install("s", &[]));
        assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r2.\n", "{place}");
        no_parts(&rig, place);
    }
}

#[test]
fn a_kill_during_the_first_installation_is_mended_by_the_next() {
    for place in PLACES {
        let rig = Rig::new();
        let killed = rig
            .install("s", &[])
            .env("FAILPOINTS", format!("{place}=return(kill)"))
            .output()
            .unwrap();
        assert!(killed.status.code().is_none(), "{place}: {killed:?}");
        assert!(!rig.path(".local/bin/reef-pi").exists(), "{place}");
        ok(&mut rig.install("s", &[]));
        assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r1.\n", "{place}");
        no_parts(&rig, place);
    }
}

#[test]
fn a_failure_during_the_first_installation_leaves_nothing() {
    for place in PLACES {
        let rig = Rig::new();
        let before = rig.everything();
        let failed = rig
            .install("s", &[])
            .env("FAILPOINTS", format!("{place}=return(error)"))
            .output()
            .unwrap();
        assert_eq!(failed.status.code(), Some(1), "{place}");
        assert_eq!(rig.everything(), before, "{place}");
    }
}

#[test]
fn a_failure_during_an_update_changes_nothing() {
    for place in PLACES.into_iter().chain(["harness::wrapped"]) {
        let rig = Rig::installed("s");
        rig.service.serve(release("r2"));
        // A wrapper that would be written anew, and an option that would be written down.
        let wrapper = rig.path(".local/bin/reef-pi");
        let text = std::fs::read_to_string(&wrapper).unwrap();
        std::fs::write(&wrapper, text.replacen("exec ", "exec  ", 1)).unwrap();
        let before = rig.everything();
        let failed = rig
            .install("s", &["--keep-bodies"])
            .env("FAILPOINTS", format!("{place}=return(error)"))
            .output()
            .unwrap();
        assert_eq!(failed.status.code(), Some(1), "{place}: {failed:?}");
        assert_eq!(rig.everything(), before, "{place}");
        assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r1.\n", "{place}");
    }
}

#[test]
fn a_kill_during_removal_leaves_no_token_and_the_next_command_ends_it() {
    for place in ["harness::unwrapped", "harness::unplaced"] {
        let rig = Rig::installed("s");
        let killed = rig
            .reef(&["harness", "uninstall", "--adapter", "pi"])
            .env("FAILPOINTS", format!("{place}=return(kill)"))
            .output()
            .unwrap();
        assert!(killed.status.code().is_none(), "{place}: {killed:?}");
        assert!(!rig.path(".local/bin/reef-pi").exists(), "{place}");
        if place == "harness::unplaced" {
            assert!(!rig.place("s").exists());
            let said = fails(&mut rig.reef(&["harness", "uninstall", "--adapter", "pi"]), 3);
            assert!(said.contains("not installed"), "{said}");
            ok(&mut rig.install("other", &[]));
        }
        ok(&mut rig.reef(&["harness", "uninstall", "--adapter", "pi"]));
        assert!(
            !rig.path(".local/share/reef").exists(),
            "{place}: {:?}",
            rig.everything().keys()
        );
    }
}

#[test]
fn what_a_kill_left_half_written_is_cleared() {
    let rig = Rig::installed("s");
    let before = rig.everything();
    for part in [
        "install.json.part-0",
        ".part-1/x/y",
        "../../../../../bin/.reef-wrapper-2",
    ] {
        let path = rig.place("s").join(part);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "half").unwrap();
    }
    rig.service.serve(release("r2"));
    ok(&mut rig.install("s", &[]));
    no_parts(&rig, "left");
    let names = |all: &std::collections::BTreeMap<_, Vec<u8>>| all.keys().cloned().collect::<Vec<std::path::PathBuf>>();
    let now = names(&rig.everything());
    let new: Vec<_> = now.iter().filter(|path| !before.contains_key(*path)).collect();
    assert!(
        new.iter().all(|path| path.starts_with(rig.place("s").join("r2"))),
        "{new:?}"
    );
}

fn no_parts(rig: &Rig, place: &str) {
    for path in rig.everything().keys() {
        let name = path.display().to_string();
        assert!(!name.contains(".part-") && !name.contains(".link-"), "{place}: {name}");
    }
}
