!> How a run ends that cannot go on: one line that says what and where, and all ranks end.
module failure
  use, intrinsic :: iso_fortran_env, only: error_unit
  use mpi_f08, only: MPI_Abort, MPI_Comm_rank, MPI_COMM_WORLD, MPI_Error_string, MPI_Finalize, &
      MPI_Barrier, MPI_SUCCESS, MPI_MAX_ERROR_STRING
  use posix, only: end_with
  implicit none
  private

  integer, parameter, public :: exit_not_verified = 1, exit_refused = 2, exit_no_reference = 3

  public :: fail, refuse, check

contains

  !> Something outside the program failed at this rank.
  subroutine fail(what)
    character(*), intent(in) :: what
    integer :: rank

    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    write (error_unit, '(a, i0, 2a)') 'btio: rank ', rank, ': ', what
    call MPI_Abort(MPI_COMM_WORLD, exit_refused)
  end subroutine fail

  !> What was asked for is not allowed, as every rank has found.
  subroutine refuse(why)
    character(*), intent(in) :: why
    integer :: rank

    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    if (rank == 0) write (error_unit, '(2a)') 'btio: ', why
    call MPI_Barrier(MPI_COMM_WORLD)
    call MPI_Finalize()
    call end_with(exit_refused)
  end subroutine refuse

  !> Calls of MPI-IO report errors; those of messages end the run by themselves.
  subroutine check(code, what)
    integer, intent(in) :: code
    character(*), intent(in) :: what
    character(MPI_MAX_ERROR_STRING) :: text
    integer :: length

    if (code == MPI_SUCCESS) return
    call MPI_Error_string(code, text, length)
    call fail(what // ': ' // text(:length))
  end subroutine check

end module failure
