//! Harbor task folders, run without Python and without a container: `task.toml`, `instruction.md`, an environment, and
//! tests that come after the agent and write a reward.
//!
//! The sandbox is the environment. Of a Dockerfile it follows WORKDIR, ENV and COPY, and runs what only works on the files
//! of the task; a task that installs something needs a container engine and is refused when the suite is read, not scored
//! as a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::dockerfile::{Environment as Image, Run};
use crate::domain::is_score;
use crate::harness::sandbox::{Ended, Input, Output, Phase, PhaseOutcome};
use crate::sys::regular;

/// A task folder, read and checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HarborTask {
    /// The folder.
    pub directory: PathBuf,
    /// What is asked.
    pub instruction: String,
    /// Where the agent works.
    pub workdir: String,
    /// What the environment copies: from here, to inside.
    pub copies: Vec<(PathBuf, String)>,
    /// What the environment runs, in between.
    pub runs: Vec<Run>,
    /// Variables of the environment and of the verifier.
    pub env: BTreeMap<String, String>,
    /// Seconds a command of the environment may take.
    pub build_s: f64,
    /// Seconds the agent may take.
    pub agent_s: f64,
    /// Seconds the tests may take.
    pub verifier_s: f64,
}

#[derive(Debug, Deserialize)]
struct TaskFile {
    #[serde(default)]
    verifier: Section,
    #[serde(default)]
    agent: Section,
    #[serde(default)]
    environment: Environment,
    #[serde(default)]
    steps: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Section {
    timeout_sec: Option<f64>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
struct Environment {
    docker_image: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    build_timeout_sec: Option<f64>,
    network_mode: Option<String>,
    #[serde(default)]
    gpus: f64,
}

/// Whether a folder is a task.
pub(super) fn is_task(directory: &Path) -> bool {
    directory.join("task.toml").is_file() && directory.join("instruction.md").is_file()
}

impl HarborTask {
    /// Reads a folder. The error says what it needs that is not here.
    pub fn load(directory: &Path) -> Result<Self, String> {
        let read =
            |name: &str| regular::read_to_string(directory.join(name)).map_err(|error| format!("{name}: {error}"));
        let file: TaskFile = toml::from_str(&read("task.toml")?).map_err(|error| format!("task.toml: {error}"))?;
        let instruction = read("instruction.md")?;
        if instruction.trim().is_empty() {
            return Err("instruction.md is empty".to_owned());
        }
        if !directory.join("tests/test.sh").is_file() {
            return Err("tests/test.sh is missing".to_owned());
        }
        if file.steps.is_some() {
            return Err("tasks of several steps are not run here".to_owned());
        }
        if file.environment.gpus > 0.0 {
            return Err("it asks for a GPU".to_owned());
        }
        if matches!(file.environment.network_mode.as_deref(), Some("public" | "allowlist")) {
            return Err("it asks for a network, which episodes do not have".to_owned());
        }
        if file.environment.docker_image.is_some() {
            return Err("it runs in a container image, which needs a container engine".to_owned());
        }
        let environment = directory.join("environment");
        if environment.join("docker-compose.yaml").exists() || environment.join("docker-compose.yml").exists() {
            return Err("it runs several containers, which needs a container engine".to_owned());
        }
        let mut task = Self {
            directory: directory.to_path_buf(),
            instruction,
            workdir: file.environment.workdir.clone().unwrap_or_else(|| "/app".to_owned()),
            copies: Vec::new(),
            runs: Vec::new(),
            env: file.environment.env,
            build_s: file.environment.build_timeout_sec.unwrap_or(600.0),
            agent_s: file.agent.timeout_sec.unwrap_or(600.0),
            verifier_s: file.verifier.timeout_sec.unwrap_or(600.0),
        };
        task.env.extend(file.verifier.env);
        let dockerfile = environment.join("Dockerfile");
        if dockerfile.is_file() {
            let text = regular::read_to_string(&dockerfile).map_err(|error| format!("Dockerfile: {error}"))?;
            let image = Image::read(&environment, &text, &task.workdir)?;
            task.workdir = image.workdir;
            task.env.extend(image.env);
            task.copies = image.copies;
            task.runs = image.runs;
        }
        if let Some(workdir) = file.environment.workdir {
            task.workdir = workdir;
        }
        if !task.workdir.starts_with('/') || task.workdir.split('/').any(|part| part == "..") || task.workdir == "/" {
            return Err(format!("the working directory {} is not usable", task.workdir));
        }
        Ok(task)
    }

    /// What the environment runs before the agent begins, each command on what was copied before it.
    pub(super) fn setup(&self, path: &str) -> Vec<Phase> {
        let mut places: BTreeSet<String> = self.runs.iter().flat_map(|run| run.makes.iter().cloned()).collect();
        places.extend(self.runs.iter().map(|run| run.workdir.clone()));
        places.insert(self.workdir.clone());
        places.remove("/");
        let mut copied = 0;
        let mut phases = Vec::new();
        for run in &self.runs {
            let mut env = run.env.clone();
            env.insert("PATH".to_owned(), path.to_owned());
            env.insert("HOME".to_owned(), "{root}/home".to_owned());
            phases.push(Phase {
                name: format!("Dockerfile line {}", run.line),
                argv: run.argv.clone(),
                env,
                directory: run.workdir.clone(),
                // In the order of their names, so that none is made anew below another.
                directories: std::mem::take(&mut places).into_iter().collect(),
                inputs: inputs(&self.copies[copied..run.after_copies]),
                seconds: self.build_s,
                must_succeed: true,
            });
            copied = run.after_copies;
        }
        phases
    }

    /// What is there when the agent begins, beside what was set up.
    pub(super) fn inputs(&self) -> Vec<Input> {
        inputs(&self.copies[self.runs.last().map_or(0, |run| run.after_copies)..])
    }

    /// The tests, which come after the agent.
    pub(super) fn verifier(&self, path: &str) -> Phase {
        let mut env = self.env.clone();
        env.insert("PATH".to_owned(), path.to_owned());
        env.insert("HOME".to_owned(), "{root}/home".to_owned());
        Phase {
            name: "verifier".to_owned(),
            argv: ["/bin/bash", "/tests/test.sh"].map(str::to_owned).to_vec(),
            env,
            directory: self.workdir.clone(),
            directories: vec![
                "/tests".to_owned(),
                "/logs/verifier".to_owned(),
                "/logs/agent".to_owned(),
            ],
            inputs: vec![Input {
                from: self.directory.join("tests"),
                to: "/tests".to_owned(),
            }],
            seconds: self.verifier_s,
            must_succeed: false,
        }
    }

    /// Where the reward is copied to.
    pub(super) fn output(to: PathBuf) -> Output {
        Output {
            from: "/logs/verifier".to_owned(),
            to,
        }
    }

    /// The reward the tests wrote. That they wrote none is a failure of theirs, not a reward of 0.
    pub(super) fn reward(kept: &Path, verifier: Option<&PhaseOutcome>) -> Result<f64, String> {
        let told = |what: String| {
            let end: String = verifier.map_or(String::new(), |phase| {
                let text = format!("{}{}", phase.stdout, phase.stderr);
                let skip = text.chars().count().saturating_sub(200);
                text.chars().skip(skip).collect()
            });
            format!("{what}; the tests said: {}", end.trim())
        };
        if let Some(phase) = verifier.filter(|phase| phase.ended == Ended::Timeout) {
            return Err(told(format!("the tests took more than {:.0} s", phase.seconds)));
        }
        if let Ok(text) = regular::read_to_string(kept.join("reward.json")) {
            let value: Value = serde_json::from_str(&text).map_err(|error| told(format!("reward.json: {error}")))?;
            let direct = value.as_f64().or_else(|| value["reward"].as_f64());
            let mean = || {
                let numbers: Vec<f64> = value.as_object()?.values().filter_map(Value::as_f64).collect();
                (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
            };
            return direct
                .or_else(mean)
                .filter(|reward| is_score(*reward))
                .ok_or_else(|| told("reward.json holds no number that can be a score".to_owned()));
        }
        match regular::read_to_string(kept.join("reward.txt")) {
            Ok(text) => text
                .trim()
                .parse()
                .ok()
                .filter(|reward: &f64| is_score(*reward))
                .ok_or_else(|| {
                    told(format!(
                        "reward.txt holds {:?}",
                        text.trim().chars().take(40).collect::<String>()
                    ))
                }),
            Err(_) => Err(told("the tests wrote no reward".to_owned())),
        }
    }
}

fn inputs(copies: &[(PathBuf, String)]) -> Vec<Input> {
    copies
        .iter()
        .map(|(from, to)| Input {
            from: from.clone(),
            to: to.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(dockerfile: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (
                "task.toml",
                "version = \"1.0\"\n[agent]\ntimeout_sec = 30.0\n[metadata]\nx = 1\n",
            ),
            ("instruction.md", "Do it."),
            ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt"),
            ("environment/Dockerfile", dockerfile),
            ("environment/data/a.csv", "1"),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_plain_environment_is_followed_and_one_that_builds_is_refused() {
        let dir = folder("FROM ubuntu:24.04\nWORKDIR /work\nENV A=1 B=\"2\"\nCOPY data ./data\nCOPY data/a.csv ./\n");
        let task = HarborTask::load(dir.path()).unwrap();
        assert_eq!((task.workdir.as_str(), task.agent_s), ("/work", 30.0));
        assert_eq!(task.env["B"], "2");
        let places: Vec<&str> = task.copies.iter().map(|(_, to)| to.as_str()).collect();
        assert_eq!(places, ["/work/data", "/work/a.csv"]);
        for (line, told) in [
            ("RUN set -e && apt-get install -y gcc", "`apt-get` needs"),
            (
                "RUN mkdir -p a \\\n  # and more\n  && python3 -m pip install x",
                "`python3 -m pip` needs",
            ),
            (
                "RUN [\"git\", \"clone\", \"https://example.com/x\"]",
                "`git clone` needs",
            ),
            ("RUN --mount=type=cache,target=/x make", "its options"),
            ("COPY --from=build /x /y", "is not understood"),
            ("FROM other AS second", "several stages"),
            ("HEALTHCHECK CMD true", "HEALTHCHECK needs"),
        ] {
            let dir = folder(&format!("FROM ubuntu\n\n{line}\n"));
            let error = HarborTask::load(dir.path()).unwrap_err();
            assert!(
                error.starts_with("Dockerfile line 3: ") && error.contains(told),
                "{error}"
            );
        }
    }

    #[test]
    fn commands_run_in_order_each_on_what_was_copied_before_it() {
        let dir = folder(
            "FROM x\nARG WHO=me\nWORKDIR /work\nENV A=1\nCOPY data ./data\n\
             RUN git init && mkdir -p /srv/out 'sub dir' \\\n  && chmod +x data/a.csv\n\
             COPY data/a.csv b.csv\nWORKDIR /work/deep\nSHELL [\"/bin/bash\", \"-c\"]\n\
             RUN cat <<'END' > c.py\nprint(1)\n# apt-get\nEND\nCOPY data/a.csv d.csv\n",
        );
        let task = HarborTask::load(dir.path()).unwrap();
        let phases = task.setup("/bin");
        let names: Vec<&str> = phases.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(names, ["Dockerfile line 6", "Dockerfile line 11"]);
        assert_eq!(phases[0].directories, ["/srv/out", "/work", "/work/deep"]);
        assert!(phases[1].directories.is_empty(), "nothing that was set up is made anew");
        assert_eq!(
            (phases[0].directory.as_str(), phases[1].directory.as_str()),
            ("/work", "/work/deep")
        );
        assert_eq!(
            (phases[0].env["A"].as_str(), phases[0].env["WHO"].as_str()),
            ("1", "me")
        );
        assert!(!task.env.contains_key("WHO"), "an ARG is for the build");
        let into = |phase: &Phase| phase.inputs.iter().map(|input| input.to.clone()).collect::<Vec<_>>();
        assert_eq!(
            (into(&phases[0]), into(&phases[1])),
            (vec!["/work/data".to_owned()], vec!["/work/b.csv".to_owned()])
        );
        assert_eq!(task.inputs()[0].to, "/work/deep/d.csv");
        assert_eq!(
            phases[1].argv,
            ["/bin/bash", "-c", "cat <<'END' > c.py\nprint(1)\n# apt-get\nEND"]
        );
    }

    #[test]
    fn a_reward_is_a_number_that_the_tests_wrote() {
        let dir = tempfile::tempdir().unwrap();
        assert!(HarborTask::reward(dir.path(), None).unwrap_err().contains("no reward"));
        fs::write(dir.path().join("reward.txt"), "0.5\n").unwrap();
        assert_eq!(HarborTask::reward(dir.path(), None), Ok(0.5));
        fs::write(dir.path().join("reward.txt"), "nan").unwrap();
        assert!(HarborTask::reward(dir.path(), None).is_err());
        fs::write(dir.path().join("reward.json"), "{\"a\": 1, \"b\": 0}").unwrap();
        assert_eq!(HarborTask::reward(dir.path(), None), Ok(0.5));
    }
}
