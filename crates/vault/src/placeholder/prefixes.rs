//! Beginnings of well-known tokens. They say whose token it is and nothing of its value.

/// In any order: the longest that fits counts.
const KNOWN: &[&str] = &[
    // GitHub, GitLab.
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glptt-",
    // Model services.
    "sk-ant-api03-",
    "sk-ant-admin01-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-admin-",
    "sk-or-v1-",
    "sk-",
    "hf_",
    "gsk_",
    "r8_",
    "pplx-",
    "xai-",
    "tvly-",
    "fw_",
    "csk-",
    "nvapi-",
    "AIza",
    // Package registries.
    "npm_",
    "pypi-",
    "cio",
    "dckr_pat_",
    "dckr_oat_",
    "rubygems_",
    // Clouds.
    "AKIA",
    "ASIA",
    "ya29.",
    "GOCSPX-",
    "dop_v1_",
    "doo_v1_",
    "hvs.",
    "hvb.",
    "fo1_",
    "rnd_",
    "v1.0-",
    // Talk, payment, work.
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxe-",
    "xoxs-",
    "xapp-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "pk_live_",
    "pk_test_",
    "whsec_",
    "SG.",
    "shpat_",
    "shpss_",
    "lin_api_",
    "ATATT3",
    "ATCTT3",
    "secret_",
    "ntn_",
    "figd_",
    "PMAK-",
    "sq0atp-",
    "EAAA",
    "glc_",
    "glsa_",
    "NRAK-",
    "phc_",
    "phx_",
    "sntrys_",
    "sbp_",
    // Words of a whole header value.
    "Bearer ",
    "Basic ",
    "token ",
    "Token ",
    "ApiKey ",
];

/// How many bytes of `value` are a known beginning; a scheme word may stand before another.
pub(super) fn known(value: &[u8]) -> usize {
    let at = one(value);
    let is_word = value.get(..at).is_some_and(|word| word.ends_with(b" "));
    if is_word { at + value.get(at..).map_or(0, one) } else { at }
}

fn one(value: &[u8]) -> usize {
    let longest =
        KNOWN.iter().filter(|known| value.starts_with(known.as_bytes())).map(|known| known.len()).max();
    longest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_counts() {
        assert_eq!(known(b"sk-ant-api03-abc"), 13);
        assert_eq!(known(b"sk-ant-abc"), 7);
        assert_eq!(known(b"sk-abc"), 3);
        assert_eq!(known(b"Bearer ghp_abc"), 11);
        assert_eq!(known(b"hello"), 0);
    }
}
