use half::{bf16, f16};
use paceline_plan::DataType;

mod sealed {
    pub trait Sealed {}
}

/// A type that can be communicated: `f32 f64 f16 bf16 i32 i64 u8`.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync {
    /// Its name on the wire.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty = $data_type:ident,)+) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )+ };
}

elements! { f32 = F32, f64 = F64, f16 = F16, bf16 = Bf16, i32 = I32, i64 = I64, u8 = U8, }
