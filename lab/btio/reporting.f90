!> What a run has found, as one JSON object.
!>
!> Rates follow NPB's rules of edition 3.3.1: operations and time are those of all steps, writes and
!> the close; there is a part for I/O (since 3.3), of which the close is a part (since 3.3.1), with
!> the harmonic mean over ranks as its time. Opening and reading back are not timed by NPB, nor does
!> it flush; these are told beside. A megabyte is 10**6 bytes.
module reporting
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08, only: MPI_Allreduce, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_SUM, &
      MPI_Get_library_version, MPI_MAX_LIBRARY_VERSION_STRING
  use equations, only: dp
  use classes, only: class_type, norms_type
  use decomposition, only: partition_type
  use dumps, only: dumps_type, phases, phase_names, writing, closing
  use json, only: json_type
  use read_back, only: found_type
  implicit none
  private

  real(dp), parameter :: mega = 1.0e6_dp
  real(dp), parameter :: seconds_min = 1.0e-9_dp
  !< Of a phase, where a rate is computed from it.

  type, public :: outcome_type
    logical :: has_run = .false.
    real(dp) :: seconds = 0
    !< Of this rank, all steps, writes and the close, but not the flush.
    type(norms_type) :: computed
    logical :: has_file = .false.
    type(found_type) :: found
    logical :: is_same = .true.
    !< The last dump read back and what was in memory when it was written.
    logical :: is_verified = .false.
  end type outcome_type

  public :: write_report, hexadecimal

contains

  subroutine write_report(class, part, file, outcome, path)
    type(class_type), intent(in) :: class
    type(partition_type), intent(in) :: part
    type(dumps_type), intent(in) :: file
    type(outcome_type), intent(in) :: outcome
    character(*), intent(in) :: path
    type(json_type) :: json
    real(dp) :: run_max, run_mean, worst(phases), mean(phases), io

    ! What all ranks must take part in comes before rank 0 is alone.
    call over_ranks(part, [outcome%seconds], worst(1:1), mean(1:1))
    run_max = worst(1)
    run_mean = mean(1)
    call over_ranks(part, file%seconds, worst, mean)
    io = harmonic_mean(part, file%seconds(writing) + file%seconds(closing))
    if (part%rank /= 0) return
    call json%begin(path)
    call tell_what(json, class, part, file, outcome)
    if (outcome%has_run) then
      call json%object('seconds')
      call json%number('max', run_max)
      call json%number('mean', run_mean)
      call json%end_object()
      call json%number('mop_per_s', class%operations() / mega / run_max)
    end if
    if (outcome%has_file) call tell_io(json, class, outcome, worst, mean, io, run_max)
    call tell_norms(json, class, outcome)
    if (class%has_reference) then
      call json%truth('verified', outcome%is_verified)
    else
      call json%nothing('verified')
    end if
    call json%finish()
  end subroutine write_report

  subroutine tell_what(json, class, part, file, outcome)
    type(json_type), intent(inout) :: json
    type(class_type), intent(in) :: class
    type(partition_type), intent(in) :: part
    type(dumps_type), intent(in) :: file
    type(outcome_type), intent(in) :: outcome
    character(MPI_MAX_LIBRARY_VERSION_STRING) :: library
    integer :: length, i

    call json%text('program', 'btio')
    call json%text('rules', 'NPB 3.3.1')
    call json%text('mode', trim(merge('run   ', 'verify', outcome%has_run)))
    call json%text('class', class%name)
    call json%whole('grid', class%n)
    call json%whole('steps', class%steps)
    call json%whole('ranks', part%p**2)
    call MPI_Get_library_version(library, length)
    call json%text('mpi', library(:index(library(:length) // ',', ',') - 1))
    call json%text('subtype', file%subtype)
    if (file%exist()) call json%text('file', file%path)
    if (.not. file%is_mpi()) return
    call json%text('mpi_io', component())
    call json%object('hints')
    do i = 1, size(file%hints)
      call json%text(trim(file%hints(i)%key), trim(file%hints(i)%value))
    end do
    call json%end_object()
  end subroutine tell_what

  !> The component that MPI-IO was told to use (`mpirun --mca io NAME`). A file does not say whose it
  !> is, and hints that are asked of it are what was given.
  function component() result(name)
    character(:), allocatable :: name
    character(64) :: value
    integer :: length, code

    call get_environment_variable('OMPI_MCA_io', value, length, code)
    name = 'default'
    if (code == 0 .and. length > 0) name = trim(value)
  end function component

  subroutine tell_io(json, class, outcome, worst, mean, io, run_max)
    type(json_type), intent(inout) :: json
    type(class_type), intent(in) :: class
    type(outcome_type), intent(in) :: outcome
    real(dp), intent(in) :: worst(:), mean(:), io, run_max
    real(dp) :: megabytes
    integer :: i

    megabytes = class%dumps() * class%dump_bytes() / mega
    call json%object('io')
    call json%number('mb', megabytes)
    call json%whole('dumps', class%dumps())
    do i = 1, phases
      call json%object(trim(phase_names(i)) // '_s')
      call json%number('max', worst(i))
      call json%number('mean', mean(i))
      call json%end_object()
    end do
    if (outcome%has_run) then
      call json%number('seconds', io)
      call json%number('share_of_run', io / run_max)
      call json%number('mb_per_s', megabytes / max(io, seconds_min))
    end if
    call json%end_object()
  end subroutine tell_io

  subroutine tell_norms(json, class, outcome)
    type(json_type), intent(inout) :: json
    type(class_type), intent(in) :: class
    type(outcome_type), intent(in) :: outcome

    call json%object('norms')
    if (outcome%has_run) then
      call json%object('computed')
      call json%numbers('residual', outcome%computed%residual)
      call json%numbers('error', outcome%computed%error)
      call json%end_object()
    end if
    if (outcome%has_file) call tell_one(json, 'read', outcome%found%norms)
    if (class%has_reference) call tell_one(json, 'reference', class%reference)
    call json%end_object()
    if (.not. outcome%has_file) return
    call json%text('checksum', hexadecimal(outcome%found%checksum))
    if (outcome%has_run) call json%truth('read_is_written', outcome%is_same)
  end subroutine tell_norms

  subroutine tell_one(json, name, norms)
    type(json_type), intent(inout) :: json
    character(*), intent(in) :: name
    type(norms_type), intent(in) :: norms

    call json%object(name)
    call json%numbers('residual', norms%residual)
    call json%numbers('error', norms%error)
    call json%numbers('dumps', norms%dumps)
    call json%end_object()
  end subroutine tell_one

  subroutine over_ranks(part, values, worst, mean)
    type(partition_type), intent(in) :: part
    real(dp), intent(in) :: values(:)
    real(dp), intent(out) :: worst(:), mean(:)

    call MPI_Allreduce(values, worst, size(values), MPI_DOUBLE_PRECISION, MPI_MAX, part%comm)
    call MPI_Allreduce(values, mean, size(values), MPI_DOUBLE_PRECISION, MPI_SUM, part%comm)
    mean = mean / part%p**2
  end subroutine over_ranks

  real(dp) function harmonic_mean(part, seconds)
    type(partition_type), intent(in) :: part
    real(dp), intent(in) :: seconds
    real(dp) :: rates

    call MPI_Allreduce(1.0_dp / max(seconds, seconds_min), rates, 1, MPI_DOUBLE_PRECISION, &
        MPI_SUM, part%comm)
    harmonic_mean = part%p**2 / rates
  end function harmonic_mean

  pure function hexadecimal(number) result(shown)
    integer(int64), intent(in) :: number
    character(16) :: shown

    write (shown, '(z16.16)') number
  end function hexadecimal

end module reporting
