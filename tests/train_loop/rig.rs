//! A store with a scenario, a recipe with real scripts, and the real program.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reef::domain::{NewExchange, NewReport, RecordId, ReleaseId, Route, ScenarioName, Timings, TrainingMode, Turn};
use reef::experience::{Experience, NewInstruction, RecordQuery, StepQuery, StoreOptions};
use reef::release::RepositoryOptions;
use reef::scenario::{BaseSeed, Publisher};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A trainer: its adapter holds the digest of its batch and of what it goes on from, as a pair of rank 1.
pub const TRAINER: &str = r#"
read -r ask
field() { printf '%s' "$ask" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
out=$(field output); batch=$(field batch); parent=$(field parent)
echo '{"event":"progress","fraction":0.5,"message":"half"}'
printf '{"peft_type": "LORA", "r": 1}' > "$out/adapter_config.json"
{
  printf '\216\000\000\000\000\000\000\000'
  printf '%s' '{"q.lora_A.weight":{"dtype":"U8","shape":[1,34],"data_offsets":[0,34]},"q.lora_B.weight":{"dtype":"U8","shape":[34,1],"data_offsets":[34,68]}}'
  { cat "$batch"; [ -z "$parent" ] || cat "$parent/adapter_model.safetensors"; } | sha256sum
} > "$out/adapter_model.safetensors"
echo '{"event":"done","metrics":{"loss":0.5,"tokens":10}}'
"#;

/// A gate that gives each side the same score every time.
pub fn gate_scoring(candidate: &str, current: &str) -> String {
    format!(
        r#"
read -r begin
echo '{{"event":"tasks","tasks":[{{"id":"a"}},{{"id":"b"}},{{"id":"c"}}]}}'
while read -r line; do
  case "$line" in
    *'"event":"end"'*) exit 0 ;;
  esac
  index=$(printf '%s' "$line" | sed 's/.*"index":\([0-9]*\).*/\1/')
  echo "{{\"event\":\"score\",\"index\":$index,\"candidate\":{candidate},\"current\":{current}}}"
done
"#
    )
}

/// A recipe whose trainer is `train.sh`.
pub fn recipe(selector: &str, evaluator: &str, gate: &str) -> String {
    format!(
        r#"
format = 1
name = "scripted"
[processor]
kind = "reported"
tokens = false
[batch]
size = 1
max-staleness = 100
[trainer]
backend = "program"
command = ["sh", "train.sh"]
[gate]
selector = "{selector}"
evaluator = "{evaluator}"
{gate}
[surface]
kind = "lora-adapter"
"#
    )
}

pub struct Rig {
    dir: TempDir,
    pub scenario: ScenarioName,
}

/// How a run of the program ended.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The events of one kind.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .filter(|event| event["event"] == kind)
            .collect()
    }
}

impl Rig {
    pub fn new(recipe: &str, files: &[(&str, &str)]) -> Self {
        let rig = Self {
            dir: tempfile::tempdir().unwrap(),
            scenario: ScenarioName::new("s").unwrap(),
        };
        rig.write("recipe.toml", recipe);
        for (name, text) in files {
            rig.write(name, text);
        }
        rig.write("serve.toml", "[recipe]\nimplementation = \"recipe.toml\"\n");
        let (publisher, scenario) = (rig.publisher(), rig.scenario.clone());
        block_on(async move {
            publisher.ensure_base(BaseSeed::Empty).await.unwrap();
            publisher.create(&scenario, TrainingMode::Auto, None).await.unwrap();
        });
        rig
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn files(&self) -> PathBuf {
        self.path("reef")
    }

    pub fn experience(&self) -> Experience {
        Experience::open(&self.files().join("experience.db"), StoreOptions::default()).unwrap()
    }

    pub fn publisher(&self) -> Publisher {
        let files = self.files();
        Publisher::open(
            &files.join("artifacts.git"),
            &files.join("cache"),
            &files.join("run"),
            self.experience(),
            RepositoryOptions::default(),
        )
        .unwrap()
    }

    pub fn head(&self) -> ReleaseId {
        self.publisher().repository().head(&self.scenario).unwrap().unwrap()
    }

    /// Stores an exchange of a session, answered by the present head.
    pub fn asked(&self, id: &str, session: &str, question: &str) {
        let mut exchange = self.exchange(id, question);
        exchange.tags.insert("session".into(), session.into());
        let publisher = self.publisher();
        block_on(async move { publisher.experience().append_exchange(exchange).await.unwrap() });
    }

    fn exchange(&self, id: &str, question: &str) -> NewExchange {
        let release = self.publisher().served(&self.scenario).unwrap();
        NewExchange {
            id: RecordId::new(id).unwrap(),
            scenario: self.scenario.clone(),
            route: Some(Route::ChatCompletions),
            release,
            request: Bytes::from(json!({"messages": [{"role": "user", "content": question}]}).to_string()),
            response: Bytes::from_static(b"{\"choices\":[{\"message\":{\"content\":\"an answer\"}}]}"),
            streamed: false,
            status: 200,
            turn: Turn {
                text: "an answer".into(),
                stop_reason: Some("stop".into()),
                ..Turn::default()
            },
            tags: Default::default(),
            timings: Timings::default(),
            capture: None,
        }
    }

    /// Stores an exchange answered by the present head, and a report on it.
    pub fn graded(&self, n: u32, score: Option<f64>) {
        let publisher = self.publisher();
        let exchange = self.exchange(&format!("e{n}"), &format!("question {n}"));
        let report = NewReport {
            id: RecordId::new(format!("p{n}")).unwrap(),
            scenario: self.scenario.clone(),
            score,
            feedback: None,
            references: vec![exchange.id.clone()],
            metadata: Default::default(),
        };
        block_on(async move {
            publisher.experience().append_exchange(exchange).await.unwrap();
            publisher.experience().append_report(report).await.unwrap();
        });
    }

    pub fn instruct(&self, id: &str, text: &str) {
        let instruction = NewInstruction {
            id: RecordId::new(id).unwrap(),
            scenario: self.scenario.clone(),
            payload: json!({"text": text, "session": "t", "release_id": "r"})
                .as_object()
                .unwrap()
                .clone(),
        };
        let experience = self.experience();
        block_on(async move { experience.append_instruction(instruction).await.unwrap() });
    }

    pub fn set_mode(&self, mode: TrainingMode) {
        let (experience, scenario) = (self.experience(), self.scenario.clone());
        block_on(async move { experience.scenario_set_mode(scenario, mode).await.unwrap() });
    }

    pub fn command(&self, args: &[&str], failpoints: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reef"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("REEF", env!("CARGO_BIN_EXE_reef"))
            .env("REEF_FILES", self.files())
            .current_dir(self.dir.path());
        // The feature `torch` links libtorch, which is found through the loader's path.
        if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", path);
        }
        if let Some(points) = failpoints {
            command.env("FAILPOINTS", points);
        }
        command.args(["-c", "serve.toml", "--dir", self.files().to_str().unwrap(), "train"]);
        command.args(args);
        command
    }

    pub fn train(&self, args: &[&str]) -> Run {
        self.train_with(args, None)
    }

    pub fn train_with(&self, args: &[&str], failpoints: Option<&str>) -> Run {
        use std::os::unix::process::ExitStatusExt;
        let output = self.command(args, failpoints).output().unwrap();
        Run {
            code: output
                .status
                .code()
                .unwrap_or_else(|| -output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn spawn(&self, args: &[&str], failpoints: Option<&str>) -> Child {
        self.command(args, failpoints)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub fn wait_for_driver(&self) {
        self.until("a driver came", || {
            reef::scenario::driver_of(&self.files().join("run"), &self.scenario).is_some()
        });
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What must hold whenever nothing is left to do: no step in progress, a chain without gaps of so many trained
    /// releases, every graded record used exactly once, no files of a step left behind.
    pub fn check_whole(&self, released: usize) {
        let experience = self.experience();
        assert_eq!(experience.open_job(&self.scenario).unwrap(), None);
        let query = StepQuery {
            oldest_first: true,
            ..StepQuery::default()
        };
        let steps = experience.steps(&self.scenario, &query).unwrap();
        for (n, step) in steps.iter().enumerate() {
            assert_eq!(step.step, n as u64, "the ledger has no gap");
        }
        let trained: Vec<_> = steps
            .iter()
            .filter(|step| step.outcome == "released" && step.batch_id.is_some())
            .collect();
        assert_eq!(trained.len(), released);
        let batches: std::collections::HashSet<_> = steps.iter().filter_map(|step| step.batch_id.clone()).collect();
        assert_eq!(
            batches.len(),
            steps.iter().filter(|step| step.batch_id.is_some()).count(),
            "one step a batch"
        );
        let publisher = self.publisher();
        let head = publisher.repository().head(&self.scenario).unwrap().unwrap();
        let chain = publisher.repository().chain(&head, None, 1000).unwrap();
        assert_eq!(
            chain.len(),
            1 + released,
            "the chain is the creation and the released steps"
        );
        let records = experience
            .records(&RecordQuery {
                scenario: Some(self.scenario.clone()),
                limit: 1000,
                ..RecordQuery::default()
            })
            .unwrap();
        let mut uses: HashMap<String, usize> = HashMap::new();
        for record in &records {
            let used = experience.consumed_by(&self.scenario, &record.id).unwrap();
            uses.insert(record.id.to_string(), used.len());
        }
        let reports = uses.iter().filter(|(id, _)| id.starts_with('p'));
        for (id, n) in reports {
            assert_eq!(*n, 1, "report {id} is used exactly once");
        }
        let work = self.files().join("work/training/s");
        let left = std::fs::read_dir(work).map_or(0, Iterator::count);
        assert_eq!(left, 0, "no files of a step are left");
    }
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}
