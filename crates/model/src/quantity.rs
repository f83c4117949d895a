//! Amounts as people write them: `512M`, `1.5GiB`, `90s`, `2.5` processors.
