//! The environment, credentials in it, and proxies.

use super::*;

fn faults(result: Result<Settings, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let text = "[inference]\nupstream-url = 'http://file'\nupstream-model = 'file'\ntimeout-s = 7\n[reef]\nport = 1\n";
    let env = [
        ("REEF_UPSTREAM_URL", "http://variable"),
        ("REEF_UPSTREAM_MODEL", "variable"),
        ("REEF_PORT", "2"),
        ("REEF_HOST", "::1"),
        ("REEF_INFERENCE_FALLBACKS", "[{url: 'http://second'}]"),
        ("REEF_STORAGE_RETENTION_DAYS", ""),
    ];
    let flags = ["--inference.upstream_url=http://flag"];
    let settings = load_with("a.toml", text, &flags, &env).unwrap();
    let inference = &settings.inference;
    assert_eq!(inference.upstream_url.as_deref(), Some("http://flag"));
    assert_eq!(inference.upstream_model.as_deref(), Some("variable"));
    assert_eq!(inference.timeout_s.as_secs(), 7);
    assert_eq!((settings.reef.port, settings.reef.host.as_str()), (2, "::1"));
    assert_eq!(settings.fallbacks().unwrap().len(), 1);
    assert_eq!(settings.storage.retention_days, None);
    for (key, source) in [
        ("inference.upstream-url", "command line --inference.upstream_url"),
        ("inference.upstream-model", "environment REEF_UPSTREAM_MODEL"),
        ("inference.timeout-s", "a.toml:4"),
        ("reef.port", "environment REEF_PORT"),
        ("storage.retention-days", "default"),
    ] {
        assert_eq!(settings.source(key).to_string(), source, "{key}");
    }
    assert_eq!(load_with("a.toml", "", &[], &env).unwrap().reef.port, 2);
    // What refers to a setting sees what counts.
    let text = "[reef]\nserved-url = 'http://h:${reef.port}'\n";
    let settings = load_with("a.toml", text, &[], &env).unwrap();
    assert_eq!(settings.reef.served_url.as_deref(), Some("http://h:2"));
}

#[test]
fn a_variable_is_held_to_the_schema_by_its_name() {
    let said = faults(load_with("a.toml", "", &[], &[("REEF_PORT", "abc")]));
    assert!(
        said.contains("environment REEF_PORT: reef.port: expected an integer"),
        "{said}"
    );
    // What Kubernetes says of a service called `reef` is no port to listen on.
    let settings = load_with(
        "a.toml",
        "[reef]\nport = 9\n",
        &[],
        &[("REEF_PORT", "tcp://10.0.0.1:8900")],
    )
    .unwrap();
    assert_eq!(settings.reef.port, 9);
    // A value of the file is held to it too, whatever overrides it.
    let said = faults(load_with("a.toml", "[reef]\nport = 'x'\n", &[], &[("REEF_PORT", "5")]));
    assert!(said.contains("a.toml:2: reef.port"), "{said}");
}

#[test]
fn of_two_names_of_the_provider_the_stronger_counts() {
    let file = "[inference]\nurl = 'http://file'\n";
    let env = [("REEF_UPSTREAM_URL", "http://variable")];
    let settings = load_with("a.toml", file, &[], &env).unwrap();
    assert_eq!(
        settings.inference.provider_url().map(|url| &**url),
        Some("http://variable")
    );
    let settings = load_with("a.toml", "", &["--inference.url=http://flag"], &env).unwrap();
    assert_eq!(settings.inference.provider_url().map(|url| &**url), Some("http://flag"));
}

#[test]
fn line_ends_at_the_end_of_a_secret_go_and_others_are_refused_by_name() {
    let file = "[reef]\ntokens = ['a\\n']\n[inference]\nupstream-api-key = '${KEY}'\n\
                fallbacks = [{url = 'http://h', api-key = \"k\\r\\n\"}, {url = 'http://h', api-key-env = 'OTHER'}]\n";
    let env = [("REEF_TOKEN", "tok\r\n"), ("KEY", "sk-1\n"), ("OTHER", "sk-2\n\n")];
    let settings = load_with("a.toml", &file.replace("'a\\n'", "\"a\\n\""), &[], &env).unwrap();
    let tokens: Vec<&str> = settings.tokens().into_iter().map(Secret::expose).collect();
    assert_eq!(tokens, ["tok", "a"]);
    assert_eq!(settings.inference.upstream_api_key.as_ref().unwrap().expose(), "sk-1");
    assert_eq!(settings.fallbacks().unwrap()[0].api_key.as_ref().unwrap().expose(), "k");
    assert_eq!(settings.credential("OTHER").unwrap().expose(), "sk-2");

    for (env, words) in [
        (
            ("REEF_TOKEN", "hun\nter2"),
            "environment REEF_TOKEN: reef.token: holds a line end",
        ),
        (
            ("REEF_TOKEN", "hunter2ä"),
            "environment REEF_TOKEN: reef.token: holds a character that is not ASCII",
        ),
        (
            ("REEF_TOKEN", "hunter2 "),
            "environment REEF_TOKEN: reef.token: begins or ends with a space",
        ),
        (("REEF_TOKEN", "\n"), "a token is empty"),
        (
            ("REEF_TOKENS", "[ok, 'hunter2 ']"),
            "environment REEF_TOKENS: reef.tokens[1]: begins or ends with a space",
        ),
        (
            ("REEF_UPSTREAM_API_KEY", "hun\rter2"),
            "inference.upstream-api-key: holds a line end",
        ),
        (
            ("REEF_RELEASE_GIT_SETTINGS", "['a=hunter2\u{1}']"),
            "release.git-settings: holds a line end or another control",
        ),
        (
            ("REEF_INFERENCE_FALLBACKS", "[{url: 'http://h', api-key: 'hunter2ä'}]"),
            "inference.fallbacks[0].api-key: holds a character that is not ASCII",
        ),
    ] {
        let said = faults(load_with("a.toml", "", &[], &[env]));
        assert!(said.contains(words) && !said.contains("hunter2"), "{said}");
    }
    let file = "[inference]\nfallbacks = [{url = 'http://h', api-key-env = 'OTHER'}]\n";
    let said = faults(load_with("a.toml", file, &[], &[("OTHER", "hunter2\u{7f}")]));
    assert!(
        said.contains("api-key-env: names the environment variable OTHER, which holds") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn the_proxy_of_the_settings_wins_over_those_of_the_environment() {
    let shown = |file: &str, env: &[(&str, &str)], address: &'static str| {
        let proxies = load_with("a.toml", file, &[], env).unwrap().proxies().unwrap();
        let address = http::Uri::from_static(address);
        proxies.on_the_way_to(&address).map(ToString::to_string)
    };
    let env = [
        ("http_proxy", "low:1"),
        ("HTTP_PROXY", "http://up:1"),
        ("HTTPS_PROXY", "http://s:1"),
        ("NO_PROXY", "x.example"),
    ];
    assert_eq!(shown("", &env, "http://h.example").as_deref(), Some("http://low:1"));
    assert_eq!(shown("", &env, "https://h.example").as_deref(), Some("http://s:1"));
    assert_eq!(shown("", &env, "https://x.example"), None);
    let file = "[network]\nproxy = 'https://u:p@own:2'\n";
    assert_eq!(shown(file, &env, "https://h.example").as_deref(), Some("https://own:2"));
    assert_eq!(shown(file, &env, "https://x.example"), None);
    let own = "[network]\nproxy = 'http://own:2'\nno-proxy = 'h.example'\n";
    assert_eq!(shown(own, &env, "https://h.example"), None);
    assert_eq!(shown(own, &env, "https://x.example").as_deref(), Some("http://own:2"));
    assert_eq!(shown("[network]\nproxy = 'none'\n", &env, "http://h.example"), None);
    assert_eq!(shown("", &[], "http://h.example"), None);
    let said = faults(load_with("a.toml", "[network]\nproxy = 'socks4://hunter2'\n", &[], &[]));
    assert!(
        said.contains("a.toml:2: network.proxy: is not the URL of a proxy") && !said.contains("hunter2"),
        "{said}"
    );
}
