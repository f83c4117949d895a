//! What a secret is for: it arrives where it is bound, in the right place, and the clients know nothing of it.

use super::{API, GIT, Held, assert_silent, base64, field};
use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    git_clones_and_pushes_one_repository
    clients_of_http_reach_one_path
}

/// A clone, a commit and a push; the other repository of the same host is refused, and hears nothing.
fn git_clones_and_pushes_one_repository(lab: &Lab) {
    let held = Held::new(lab);
    let folder = held.repositories();
    let work = "git clone -q https://git.example.com/git/one.git one && cd one && echo more >> README && \
                git -c user.name=A -c user.email=a@example.com commit -qam more && git push -q origin HEAD:made && \
                git fetch -q && git log --oneline origin/made && cd ..";
    // Without the key nobody gets in: what works inside works by the secret.
    let without = held.stand.beside(&["sh", "-c", &format!("export GIT_TERMINAL_PROMPT=0; {work}")]);
    assert_ne!(without.ran.code(), 0, "the repository is open to all: {}", without.ran.told());
    let script = format!(
        "export GIT_TERMINAL_PROMPT=0; {work} || exit 9; \
                          git ls-remote https://git.example.com/git/two.git && exit 8; \
                          git ls-remote https://x-access-token:$GH@git.example.com/git/two.git && exit 7; \
                          git ls-remote https://x-access-token:$GH@git.example.com/git/one.git || exit 6"
    );
    let seen = held.sh(&["--allow", GIT], &script);
    assert_eq!(seen.ran.code(), 0, "{}\n{}", seen.ran.told(), seen.log.told());
    assert_silent(&seen, &held.value);
    assert!(folder.join("refs/heads/made").exists(), "nothing was pushed");
    let basic = format!("Basic {}", base64(&format!("x-access-token:{}", held.value)));
    assert!(seen.log.all("request").count() > 3, "{}", seen.log.told());
    for request in seen.log.all("request") {
        assert!(request["target"].as_str().unwrap().starts_with("/git/one.git/"), "{request}");
        assert_eq!(field(request, "authorization"), basic, "{request}");
    }
    assert!(seen.ran.err().contains("/git/two.git"), "the refusal is not told: {}", seen.ran.told());
}

/// curl, Python and Node, with the placeholder in the field, with something else there, and with nothing.
fn clients_of_http_reach_one_path(lab: &Lab) {
    let held = Held::new(lab);
    let clients = [
        "curl -sSf -H \"Authorization: Bearer $GH\" https://api.example.com/v1/items",
        "curl -sSf --http2 https://api.example.com/v1/items",
        "curl -sSf -H 'Authorization: Basic bWluZTptaW5l' -H 'authorization: Bearer mine' https://api.example.com/v1/items",
        "curl -sSf -d data=1 https://api.example.com/v1/items",
        "/usr/bin/python3 -c \"import os, requests; print(requests.get('https://api.example.com/v1/items', headers={'Authorization': 'Bearer ' + os.environ['GH']}).text)\"",
        "/usr/bin/python3 -c \"import os, httpx; print(httpx.Client(http2=True).get('https://api.example.com/v1/items', headers={'Authorization': 'Bearer ' + os.environ['GH']}).text)\"",
        "node -e \"fetch('https://api.example.com/v1/items', {headers: {Authorization: 'Bearer ' + process.env.GH}}).then((a) => a.text()).then(console.log)\"",
    ];
    let script: String = clients.iter().map(|client| format!("{client} || exit 9; echo; ")).collect();
    let seen = held.sh(&["--allow", API], &script);
    assert_eq!(seen.ran.code(), 0, "{}\n{}", seen.ran.told(), seen.log.told());
    assert_silent(&seen, &held.value);
    let requests: Vec<_> = seen.log.all("request").collect();
    assert_eq!(requests.len(), clients.len(), "{}", seen.log.told());
    for request in requests {
        assert_eq!(field(request, "authorization"), format!("Bearer {}", held.value), "{request}");
        let heads = request["head"].as_str().unwrap().to_lowercase();
        assert_eq!(heads.matches("\r\nauthorization:").count(), 1, "{request}");
        assert!(!heads.contains("mine"), "{request}");
    }
}
