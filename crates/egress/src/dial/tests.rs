//! The host's own way of resolving, as far as it goes without a server on port 53.

use super::*;
use std::fs;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

#[test]
fn the_hosts_list_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, list) = (folder.path().join("resolv.conf"), folder.path().join("hosts"));
    fs::write(&list, "203.0.113.9 db.example.com\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lookup = SystemLookup::new(settings.clone(), list.clone());
        let found = lookup.addresses(&name("db.example.com")).await.unwrap();
        assert_eq!(found, ["203.0.113.9".parse::<IpAddr>().unwrap()]);
        let error = lookup.addresses(&name("api.example.com")).await.unwrap_err();
        assert!(matches!(&error, DialError::Resolver(why) if why.contains("names no server")), "{error}");
    });
}
