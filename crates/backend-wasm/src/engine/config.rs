//! How modules are compiled and run: one configuration for both, or no artifact would be taken.

use crate::wasi::{self, Host};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module, OptLevel,
    PoolingAllocationConfig, Result, Store, StoreLimits, StoreLimitsBuilder,
};

/// The stack of a module. The main thread's has four times that.
const STACK_BYTES: usize = 2 << 20;
/// What a memory may grow to at most, whatever the envelope allows.
const MEMORY_BYTES: usize = 4 << 30;
/// The pool of tables counts as data of the process, used or not.
const TABLE_ELEMENTS: usize = 1 << 17;
const MEMORIES: u32 = 4;
const TABLES: u32 = 8;

/// An engine for modules that run one at a time, in a process that holds nothing else.
pub(super) fn engine() -> Result<Engine> {
    Engine::new(&config(1))
}

fn config(instances: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(instances)
        .total_memories(instances.saturating_mul(MEMORIES))
        .total_tables(instances.saturating_mul(TABLES))
        .max_memories_per_module(MEMORIES)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_core_instance_size(4 << 20)
        .max_memory_size(MEMORY_BYTES)
        .linear_memory_keep_resident(64 << 10)
        .table_keep_resident(64 << 10);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .cranelift_opt_level(OptLevel::Speed)
        .memory_init_cow(true)
        .wasm_custom_page_sizes(false)
        .max_wasm_stack(STACK_BYTES)
        .generate_address_map(false)
        .native_unwind_info(false);
    config
}

/// What one module may take.
pub(super) fn limits(memory_bytes: u64) -> StoreLimits {
    StoreLimitsBuilder::new()
        .memory_size(usize::try_from(memory_bytes).unwrap_or(usize::MAX).min(MEMORY_BYTES))
        .table_elements(TABLE_ELEMENTS)
        .instances(1)
        .memories(MEMORIES as usize)
        .tables(TABLES as usize)
        .build()
}

/// The functions that a module may import.
pub(super) fn linker(engine: &Engine) -> Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    wasi::add_to(&mut linker)?;
    Ok(linker)
}

/// A module in this very process, made again and again. For measuring what the engine itself takes: whoever keeps
/// a module that nobody trusts this near has no wall but the engine.
pub struct Warm {
    engine: Engine,
    module: InstancePre<Host>,
}

// === impl Warm ===

impl std::fmt::Debug for Warm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Warm").finish_non_exhaustive()
    }
}

impl Warm {
    /// Compiles a module.
    ///
    /// # Errors
    /// It is not valid, or imports what is not offered.
    pub fn new(module: &[u8]) -> Result<Self> {
        let engine = Engine::new(&config(4))?;
        let module = linker(&engine)?.instantiate_pre(&Module::new(&engine, module)?)?;
        Ok(Self { engine, module })
    }

    /// Makes one, calls its `_start`, and lets go of it.
    ///
    /// # Errors
    /// It traps, or can not be made.
    pub fn once(&self) -> Result<()> {
        let null = || std::fs::File::open("/dev/null").map(Into::into);
        let host = Host::new([null()?, null()?, null()?], limits(1 << 30), 64);
        let host = host.map_err(|errno| wasmtime::Error::msg(format!("{errno:?}")))?;
        let mut store = Store::new(&self.engine, host);
        store.limiter(|host| &mut host.limits);
        let instance = self.module.instantiate(&mut store)?;
        instance.get_typed_func::<(), ()>(&mut store, "_start")?.call(&mut store, ())
    }
}
