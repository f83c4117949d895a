//! What others make of our certificates and trust stores.

use super::jks::{self, StoreFlaw, Trusted};
use super::trust::{self, JavaStore};
use super::{Ca, Opener};
use fumehood_model::egress::{Host, Identity, Scheme};
use std::process::Command;
use std::rc::Rc;
use std::time::SystemTime;

fn ca() -> Ca {
    Ca::make("8f3a", SystemTime::now()).unwrap()
}

#[test]
fn every_authority_and_every_leaf_is_its_own() {
    let (one, two) = (ca(), ca());
    assert_ne!(one.der(), two.der());
    assert!(!format!("{one:?}").contains("PRIVATE"));
    let host = Host::parse("api.example.com").unwrap();
    let leaves = [one.leaf(&host).unwrap(), one.leaf(&host).unwrap()];
    assert_ne!(leaves[0].cert, leaves[1].cert, "two certificates have one number");
    for host in ["10.1.2.3", "[2001:db8::1]", "a_b.example.com", &format!("{}.example.com", "a".repeat(63))] {
        assert!(one.leaf(&Host::parse(host).unwrap()).is_ok(), "{host}");
    }
}

#[test]
fn openssl_verifies_leaves_strictly() {
    let ca = ca();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, ca.pem()).unwrap();
    for (host, flag) in [("api.example.com", "-verify_hostname"), ("10.1.2.3", "-verify_ip")] {
        let leaf = ca.leaf(&Host::parse(host).unwrap()).unwrap();
        let der = folder.path().join("leaf.der");
        std::fs::write(&der, &leaf.cert[0]).unwrap();
        let verify = |name: &str| {
            Command::new("openssl")
                .args(["verify", "-x509_strict", "-purpose", "sslserver", flag, name, "-CAfile"])
                .args([&file, &der])
                .output()
        };
        match verify(host) {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => return eprintln!("not tried: there is no openssl ({error})"),
        }
        let other = if flag == "-verify_ip" { "10.1.2.4" } else { "example.com" };
        assert!(!verify(other).unwrap().status.success());
    }
}

#[test]
fn the_cache_of_leaves_is_bounded_and_gives_the_same_again() {
    let opener = Opener::new(Rc::new(ca()));
    let host = |place: usize| Host::parse(&format!("h{place}.example.com")).unwrap();
    let first = opener.config_of(&host(0));
    assert!(std::sync::Arc::ptr_eq(&first, &opener.config_of(&host(0))));
    for place in 1..=1_024 {
        opener.config_of(&host(place));
    }
    assert!(!std::sync::Arc::ptr_eq(&first, &opener.config_of(&host(0))));
    assert_eq!(Identity::new(Scheme::Https, host(1), 443).unwrap().port(), 443);
}

#[test]
fn bundles_are_added_to() {
    let ca = ca();
    let text = |last| String::from_utf8(trust::addition(last, ca.pem())).unwrap();
    // A bundle need not end its last line.
    assert_eq!(text(Some(b'-')), format!("\n{}", ca.pem()));
    assert_eq!(text(Some(b'\n')), ca.pem());
    assert_eq!(text(None), ca.pem());
    let set = trust::variables("/b.pem", "/a.pem", |name| name == "PIP_CERT");
    assert!(set.contains(&("SSL_CERT_FILE", "/b.pem".to_owned())));
    assert!(set.contains(&("NODE_EXTRA_CA_CERTS", "/a.pem".to_owned())));
    assert!(!set.iter().any(|(name, _)| *name == "PIP_CERT"));
}

#[test]
fn a_java_store_is_added_to_and_keytool_reads_it() {
    let (ca, other) = (ca(), ca());
    let made = jks::store([Trusted { alias: "other", der: other.der() }], 1_700_000_000_000);
    let own = Trusted { alias: "own", der: ca.der() };
    let more = jks::extend(made, own, 1_700_000_000_000).unwrap();
    assert_eq!(jks::store([Trusted { alias: "other", der: other.der() }, own], 1_700_000_000_000), more);
    let mut damaged = more.clone();
    damaged[40] ^= 1;
    assert_eq!(jks::extend(damaged, own, 0), Err(StoreFlaw::OtherPassword));
    assert_eq!(jks::extend(more[..20].to_vec(), own, 0), Err(StoreFlaw::Damaged));
    assert_eq!(jks::extend(b"\x30\x82\x01\x02".to_vec(), own, 0), Err(StoreFlaw::OtherFormat));
    assert_eq!(jks::extend(Vec::new(), own, 0), Err(StoreFlaw::Damaged));
    let mut stores = vec![(more, 2)];
    if let Ok(host) = std::fs::read("/etc/ssl/certs/java/cacerts") {
        let JavaStore::Extended(store) = trust::extend_java(host.clone(), Vec::new, ca.der(), 0) else {
            panic!("the host's store was not extended")
        };
        stores.push((store, entries(&host) + 1));
    }
    let bundle = format!("{}{}", other.pem(), ca.pem());
    match trust::extend_java(b"\x30\x82\x01\x02".to_vec(), || bundle.into_bytes(), ca.der(), 0) {
        JavaStore::FromBundle(store, StoreFlaw::OtherFormat) => stores.push((store, 3)),
        store @ (JavaStore::Extended(_) | JavaStore::FromBundle(..)) => panic!("{store:?}"),
    }
    for (store, count) in stores {
        assert_eq!(entries(&store), count);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &store).unwrap();
        let keytool = Command::new("keytool")
            .args(["-J-Duser.language=en", "-list", "-storepass", "changeit", "-keystore"])
            .arg(file.path())
            .output();
        match keytool {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{said}");
                assert!(said.contains(&format!("contains {count} entr")), "{count}: {said:.300}");
            }
            Err(error) => eprintln!("not tried: there is no keytool ({error})"),
        }
    }
}

fn entries(store: &[u8]) -> u32 {
    u32::from_be_bytes(store[8..12].try_into().unwrap())
}
