//! Task suites: a directory with an optional `suite.toml` (defaults) and tasks in `*.jsonl` or `tasks/*.toml`, or one
//! `.jsonl` file. The suite lies outside of everything a candidate can touch.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::EvalError;
use super::checker::CheckerSpec;
use super::harbor::{HarborTask, is_task};
use crate::sys::regular;

/// One task: what is asked, and how the answer is scored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Task {
    /// Its id in the suite.
    pub id: String,
    /// What is asked, as one user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What is asked, as a conversation; instead of `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Value>>,
    /// Further fields of the request, over those of the suite: `temperature`, `max_tokens`, `tools`, …
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub request: Map<String, Value>,
    /// How the answer is scored; the suite's checker if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checker: Option<CheckerSpec>,
    /// The right answer, for the suite's checker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// It may not get worse.
    #[serde(default)]
    pub protected: bool,
    /// What an agent's workspace holds at the beginning: a directory of the suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Kept from the gate: scored once per release, for the record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

/// `suite.toml`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct SuiteFile {
    #[serde(default)]
    name: Option<String>,
    /// A system message before each prompt.
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    request: Map<String, Value>,
    #[serde(default)]
    checker: Option<CheckerSpec>,
    /// Tasks that may not get worse, by id; for task folders, which cannot say so themselves.
    #[serde(default)]
    protected: Vec<String>,
    /// Tasks kept from the gate, by id.
    #[serde(default)]
    sealed: Vec<String>,
    #[serde(default)]
    task: Vec<Task>,
}

/// A suite, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Where its files are.
    pub directory: PathBuf,
    /// Its tasks with everything filled in: complete request bodies, a checker each.
    pub tasks: Vec<ReadyTask>,
    /// SHA-256 over everything that decides a score; two results compare only where it is equal.
    pub digest: String,
}

/// A task ready to run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadyTask {
    /// Its id.
    pub id: String,
    /// The body of the request.
    pub request: Map<String, Value>,
    /// How it is scored.
    pub checker: CheckerSpec,
    /// It may not get worse.
    pub protected: bool,
    /// What an agent's workspace holds at the beginning: a directory of the suite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Kept from the gate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// A Harbor task folder; then `request` and `checker` are its instruction and its tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harbor: Option<HarborTask>,
}

impl Suite {
    /// Reads a suite.
    pub fn load(path: &Path) -> Result<Self, EvalError> {
        let (directory, files) = files_of(path)?;
        let config_path = directory.join("suite.toml");
        let config: SuiteFile = if path.is_dir() && config_path.exists() {
            toml::from_str(&read(&config_path)?).map_err(|error| fault(&config_path, None, error.to_string()))?
        } else {
            SuiteFile::default()
        };
        let mut tasks: Vec<(PathBuf, Option<usize>, Task)> = config
            .task
            .iter()
            .map(|task| (config_path.clone(), None, task.clone()))
            .collect();
        for file in files {
            let text = read(&file)?;
            if file.extension().is_some_and(|extension| extension == "toml") {
                let task = toml::from_str(&text).map_err(|error| fault(&file, None, error.to_string()))?;
                tasks.push((file, None, task));
                continue;
            }
            for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                let task =
                    serde_json::from_str(line).map_err(|error| fault(&file, Some(index + 1), error.to_string()))?;
                tasks.push((file.clone(), Some(index + 1), task));
            }
        }
        let mut seen = HashSet::new();
        let mut ready = Vec::with_capacity(tasks.len());
        for (file, line, task) in tasks {
            if !seen.insert(task.id.clone()) {
                return Err(fault(
                    &file,
                    line,
                    format!("task id \"{}\" occurs twice", task.id.escape_default()),
                ));
            }
            let id = task.id.clone();
            ready.push(prepare(&config, task).map_err(|what| fault(&file, line, format!("task {id}: {what}")))?);
        }
        for folder in harbor_folders(path, &directory)? {
            let id = folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let harbor = HarborTask::load(&folder).map_err(|what| fault(&folder, None, what))?;
            if !seen.insert(id.clone()) {
                return Err(fault(
                    &folder,
                    None,
                    format!("task id \"{}\" occurs twice", id.escape_default()),
                ));
            }
            ready.push(ReadyTask {
                id,
                request: Map::from_iter([(
                    "messages".to_owned(),
                    json!([{"role": "user", "content": harbor.instruction}]),
                )]),
                checker: CheckerSpec::Script {
                    command: vec!["tests/test.sh".to_owned()],
                    timeout_s: harbor.verifier_s,
                    answer: Value::Null,
                },
                protected: false,
                workspace: None,
                sealed: false,
                harbor: Some(harbor),
            });
        }
        for task in &mut ready {
            task.protected |= config.protected.contains(&task.id);
            task.sealed |= config.sealed.contains(&task.id);
            if task.protected && task.sealed {
                return Err(fault(
                    &config_path,
                    None,
                    format!(
                        "task {}: a task the gate does not see cannot be protected by it",
                        task.id
                    ),
                ));
            }
            if let Some(workspace) = &task.workspace
                && !directory.join(workspace).is_dir()
            {
                return Err(fault(
                    path,
                    None,
                    format!(
                        "task {}: workspace {workspace} is not a directory of the suite",
                        task.id
                    ),
                ));
            }
        }
        if let Some(id) = config
            .protected
            .iter()
            .chain(&config.sealed)
            .find(|id| !seen.contains(*id))
        {
            return Err(fault(
                &config_path,
                None,
                format!("there is no task \"{}\"", id.escape_default()),
            ));
        }
        if ready.is_empty() {
            return Err(fault(
                path,
                None,
                "there is no task: write them in tasks.jsonl, one JSON object a line".into(),
            ));
        }
        let name = config.name.unwrap_or_else(|| {
            directory
                .file_name()
                .map_or_else(|| "suite".to_owned(), |name| name.to_string_lossy().into_owned())
        });
        let mut hash = Sha256::new();
        hash.update(json!(ready).to_string().as_bytes());
        for task in &ready {
            let folder = task.harbor.as_ref().map(|harbor| harbor.directory.clone());
            let workspace = task.workspace.as_ref().map(|workspace| directory.join(workspace));
            for place in folder.into_iter().chain(workspace) {
                hash_files(&mut hash, &place)?;
            }
        }
        let digest = hex::encode(hash.finalize());
        Ok(Self {
            name,
            directory,
            tasks: ready,
            digest,
        })
    }
}

fn files_of(path: &Path) -> Result<(PathBuf, Vec<PathBuf>), EvalError> {
    if path.is_file() {
        let directory = path.parent().unwrap_or(Path::new(".")).to_path_buf();
        return Ok((directory, vec![path.to_path_buf()]));
    }
    let mut files = Vec::new();
    for (dir, extension) in [(path.to_path_buf(), "jsonl"), (path.join("tasks"), "toml")] {
        if extension == "toml" && !dir.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&dir).map_err(|source| EvalError::Read {
            path: dir.clone(),
            source,
        })?;
        let first = files.len();
        for entry in entries {
            let found = entry
                .map_err(|source| EvalError::Read {
                    path: dir.clone(),
                    source,
                })?
                .path();
            if found.extension().is_some_and(|e| e == extension) {
                files.push(found);
            }
        }
        // The order of a directory is the machine's; the order of a suite is not.
        files[first..].sort();
    }
    Ok((path.to_path_buf(), files))
}

/// Task folders of the format of Harbor: the directory itself, or those in it.
fn harbor_folders(path: &Path, directory: &Path) -> Result<Vec<PathBuf>, EvalError> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    if is_task(path) {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut folders = Vec::new();
    for entry in fs::read_dir(directory).map_err(|source| EvalError::Read {
        path: directory.to_path_buf(),
        source,
    })? {
        let found = entry
            .map_err(|source| EvalError::Read {
                path: directory.to_path_buf(),
                source,
            })?
            .path();
        if found.is_dir() && is_task(&found) {
            folders.push(found);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Takes the names and bytes of every file below a directory into a digest.
fn hash_files(hash: &mut Sha256, directory: &Path) -> Result<(), EvalError> {
    let failed = |source| EvalError::Read {
        path: directory.to_path_buf(),
        source,
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    paths.sort();
    for path in paths {
        let unreadable = |source| EvalError::Read {
            path: path.clone(),
            source,
        };
        let kind = fs::symlink_metadata(&path).map_err(unreadable)?.file_type();
        if kind.is_dir() {
            hash_files(hash, &path)?;
            continue;
        }
        // An episode gets a link as a link, which may lead round in circles here.
        let bytes = if kind.is_symlink() {
            fs::read_link(&path).map_err(unreadable)?.into_os_string().into_vec()
        } else {
            regular::read(&path).map_err(unreadable)?
        };
        hash.update(
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
        );
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(())
}

fn prepare(config: &SuiteFile, task: Task) -> Result<ReadyTask, String> {
    let mut messages = match (task.prompt, task.messages) {
        (Some(prompt), None) => vec![json!({"role": "user", "content": prompt})],
        (None, Some(messages)) if !messages.is_empty() => messages,
        (Some(_), Some(_)) => return Err("give prompt or messages, not both".to_owned()),
        _ => return Err("prompt or messages is needed".to_owned()),
    };
    if let Some(system) = &config.system
        && messages.first().is_none_or(|first| first["role"] != "system")
    {
        messages.insert(0, json!({"role": "system", "content": system}));
    }
    let mut request = config.request.clone();
    request.extend(task.request);
    request.insert("messages".to_owned(), Value::Array(messages));
    let checker = task
        .checker
        .or_else(|| config.checker.clone())
        .ok_or("a checker is needed, in the task or in suite.toml")?;
    let checker = match task.answer {
        Some(answer) => checker.with_answer(&answer)?,
        None => checker,
    };
    checker.check()?;
    Ok(ReadyTask {
        id: task.id,
        request,
        checker,
        protected: task.protected,
        workspace: task.workspace,
        sealed: task.sealed,
        harbor: None,
    })
}

fn read(path: &Path) -> Result<String, EvalError> {
    regular::read_to_string(path).map_err(|source| EvalError::Read {
        path: path.to_path_buf(),
        source,
    })
}

fn fault(path: &Path, line: Option<usize>, fault: String) -> EvalError {
    EvalError::Suite {
        path: path.to_path_buf(),
        line,
        fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(files: &[(&str, &str)]) -> Result<Suite, EvalError> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Suite::load(dir.path())
    }

    #[test]
    fn defaults_of_the_suite_reach_every_task_and_a_task_overrides_them() {
        let loaded = suite(&[
            (
                "suite.toml",
                "name = \"sums\"\nsystem = \"Answer with a number.\"\n[request]\ntemperature = 0.5\nmax_tokens = 8\n[checker]\nkind = \"numeric\"\n",
            ),
            (
                "tasks.jsonl",
                "{\"id\":\"a\",\"prompt\":\"1+1\",\"answer\":2}\n\n{\"id\":\"b\",\"prompt\":\"2+2\",\"answer\":4,\"request\":{\"max_tokens\":3},\"protected\":true}\n",
            ),
            ("tasks/c.toml", "id = \"c\"\nprompt = \"say yes\"\nchecker = { kind = \"exact\", answers = [\"yes\"] }\n"),
        ])
        .unwrap();
        assert_eq!(loaded.name, "sums");
        let ids: Vec<&str> = loaded.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        let b = loaded.tasks.iter().find(|task| task.id == "b").unwrap();
        assert_eq!(
            (&b.request["temperature"], &b.request["max_tokens"]),
            (&json!(0.5), &json!(3))
        );
        assert_eq!(b.request["messages"][0]["role"], "system");
        assert!(b.protected);
    }

    #[test]
    fn faults_name_file_and_line() {
        let error = |files: &[(&str, &str)]| suite(files).unwrap_err().to_string();
        let two = "{\"id\":\"a\",\"prompt\":\"x\",\"checker\":{\"kind\":\"exact\",\"answers\":[\"y\"]}}\n";
        let text = error(&[("t.jsonl", &format!("{two}{two}"))]);
        assert!(text.contains("t.jsonl:2") && text.contains("twice"), "{text}");
        let text = error(&[("t.jsonl", "{\"id\":\"a\",\"promt\":\"x\"}")]);
        assert!(text.contains("promt") && text.contains("t.jsonl:1"), "{text}");
        let text = error(&[("t.jsonl", "{\"id\":\"a\",\"prompt\":\"x\"}")]);
        assert!(text.contains("checker is needed"), "{text}");
        let text = error(&[(
            "t.jsonl",
            "{\"id\":\"a\",\"prompt\":\"x\",\"checker\":{\"kind\":\"regex\",\"pattern\":\"(\"}}",
        )]);
        assert!(text.contains("pattern"), "{text}");
        assert!(error(&[("t.jsonl", "")]).contains("no task"));
    }

    #[test]
    fn the_digest_changes_with_what_decides_a_score() {
        let with = |answer: &str| {
            suite(&[(
                "t.jsonl",
                &format!(
                    "{{\"id\":\"a\",\"prompt\":\"x\",\"checker\":{{\"kind\":\"exact\",\"answers\":[\"{answer}\"]}}}}"
                ),
            )])
            .unwrap()
            .digest
        };
        assert_eq!(with("y"), with("y"));
        assert_ne!(with("y"), with("z"));
    }
}
