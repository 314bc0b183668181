//! A kill anywhere leaves the old release or the new one, whole, and the next try ends what was begun.

use crate::rig::{Rig, ok, release};

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

fn no_parts(rig: &Rig, place: &str) {
    for path in rig.everything().keys() {
        let name = path.display().to_string();
        assert!(!name.contains(".part-") && !name.contains(".link-"), "{place}: {name}");
    }
}
