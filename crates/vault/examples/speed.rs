use fumehood_vault::{mask::*, placeholder::*, secret::*};
use std::time::Instant;
fn main() {
    let mut seed = 1u64;
    let mut rnd = |b: &mut [u8]| for x in b { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; *x = (seed >> 24) as u8 };
    for (count, len) in [(1, 40), (3, 40), (10, 40), (10, 93), (30, 40)] {
        let mut all = vec![];
        for i in 0..count {
            let mut raw = vec![0u8; len]; rnd(&mut raw);
            let al = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
            let v: Vec<u8> = b"ghp_".iter().copied().chain(raw.iter().map(|b| al[*b as usize % 62])).collect();
            let s = Secret::new(SecretName::parse(&format!("T{i}")).unwrap(), v.into(), None).unwrap();
            let p = Placeholder::new(&s, Shape::Opaque, &mut rnd).unwrap();
            all.push((s, p));
        }
        let t = Instant::now();
        let m = Masker::new(all.iter().map(|(a, b)| (a, b)));
        let built = t.elapsed();
        let mut random = vec![0u8; 64 << 20]; rnd(&mut random);
        let json: Vec<u8> = br#"{"id":6789,"name":"some-repository","full_name":"octo/hub","private":false,"owner":{"login":"octocat","url":"https://api.github.com/users/octocat"}},
"#.iter().copied().cycle().take(64 << 20).collect();
        let b64: Vec<u8> = random.iter().map(|b| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(*b & 63) as usize]).collect();
        for (what, data) in [("random", &random), ("json", &json), ("base64", &b64)] {
            let mut s = m.stream();
            let t = Instant::now();
            let mut n = 0;
            for c in data.chunks(16384) { s.feed(c, &mut |p| if let Piece::Chunk(r) = p { n += r.len() }); }
            let e = t.elapsed().as_secs_f64();
            println!("{m:?} built {built:?} {what}: {:.2} GB/s same {}", data.len() as f64 / e / 1e9, n * 100 / data.len());
        }
    }
}
