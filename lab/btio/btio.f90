!> BT-IO: a block-tridiagonal solver of three-dimensional flow that writes its solution as it goes.
!>
!> Written from the benchmark's published description and reference norms; none of NPB's code is in
!> it. A run computes, writes, reads back and judges. `--verify-only` is the reading and judging
!> alone: started later, or on other hosts, it does not have the answer in memory.
!>
!> Its exit code: 0 verified, 1 not, 2 could not be run, 3 there is no reference for this class.
program btio
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08, only: MPI_Init, MPI_Finalize, MPI_Barrier, MPI_Wtime, MPI_COMM_WORLD
  use equations, only: dp
  use classes, only: class_type, find_class
  use decomposition, only: partition_type, partition
  use dumps, only: dumps_type, syncing
  use failure, only: refuse, exit_not_verified, exit_no_reference
  use norms, only: error_norm, agree
  use options, only: options_type, read_options
  use posix, only: end_with
  use read_back, only: read_all, checksum_of, is_equal
  use reporting, only: outcome_type, write_report, hexadecimal
  use solver, only: solver_type
  implicit none

  type(options_type) :: asked
  type(class_type) :: class
  type(partition_type) :: part
  type(solver_type) :: solved
  type(dumps_type) :: file
  type(outcome_type) :: outcome
  character(:), allocatable :: reason

  call MPI_Init()
  asked = read_options()
  class = find_class(asked%class)
  call partition(MPI_COMM_WORLD, class%n, part, reason)
  if (allocated(reason)) call refuse(reason)
  file%subtype = asked%subtype
  file%path = asked%path
  file%with_sync = asked%with_sync
  file%hints = asked%hints
  outcome%has_run = .not. asked%verify_only
  outcome%has_file = file%exist()
  call solved%make(class, part)
  if (outcome%has_run) call run()
  if (outcome%has_file) call look()
  call judge()
  call write_report(class, part, file, outcome, asked%report)
  call MPI_Finalize()
  if (.not. class%has_reference) call end_with(exit_no_reference)
  if (.not. outcome%is_verified) call end_with(exit_not_verified)

contains

  !> All steps, and a dump after every few of them.
  subroutine run()
    integer :: step, dump
    real(dp) :: begin

    ! A first step finds memory and connections ready for those that are timed.
    call solved%step(part)
    call solved%restart(part)
    if (file%exist()) call file%create(part)
    dump = 0
    call MPI_Barrier(MPI_COMM_WORLD)
    begin = MPI_Wtime()
    do step = 1, class%steps
      call solved%step(part)
      if (file%exist() .and. class%is_written(step)) then
        call file%write(part, dump, solved%u)
        dump = dump + 1
      end if
    end do
    if (file%exist()) call file%sync_and_close(part)
    outcome%seconds = MPI_Wtime() - begin - file%seconds(syncing)
    outcome%computed%error = error_norm(part, solved%u)
    outcome%computed%residual = solved%residual(part)
  end subroutine run

  !> Reads everything back, and compares the last dump with what was computed.
  subroutine look()
    integer(int64) :: computed

    computed = checksum_of(part, 0, solved%u)
    call MPI_Barrier(MPI_COMM_WORLD)
    call read_all(class, part, file, solved, outcome%found)
    if (outcome%has_run) outcome%is_same = is_equal(part, &
        computed, checksum_of(part, 0, solved%u))
  end subroutine look

  !> Every norm that there is agrees with its reference, and a given checksum with the file's.
  subroutine judge()
    outcome%is_verified = class%has_reference
    if (outcome%has_run) outcome%is_verified = outcome%is_verified &
        .and. agree(outcome%computed%residual, class%reference%residual) &
        .and. agree(outcome%computed%error, class%reference%error)
    if (outcome%has_file) outcome%is_verified = outcome%is_verified .and. outcome%is_same &
        .and. agree(outcome%found%norms%residual, class%reference%residual) &
        .and. agree(outcome%found%norms%error, class%reference%error) &
        .and. agree(outcome%found%norms%dumps, class%reference%dumps)
    if (asked%checksum /= '') outcome%is_verified = outcome%is_verified &
        .and. hexadecimal(outcome%found%checksum) == asked%checksum
  end subroutine judge

end program btio
