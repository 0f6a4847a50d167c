!> What is in the file: every dump's error norm, the last one's residual, and a checksum of all
!> bits.
!>
!> NPB's norms agree to 1e-8, which a wrong bit far behind the point passes. The checksum does not
!> depend on ranks or subtypes, so two files can be compared without being in one place.
module read_back
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08, only: MPI_Allreduce, MPI_IN_PLACE, MPI_INTEGER8, MPI_BXOR, MPI_LOGICAL, MPI_LAND
  use equations, only: dp, unknowns
  use classes, only: class_type, norms_type
  use decomposition, only: partition_type
  use dumps, only: dumps_type
  use norms, only: error_norm
  use solver, only: solver_type
  implicit none
  private

  integer, parameter :: rotations = 63
  !< A word is rotated by its place, so that words which are exchanged are seen; 63 and 5 have no
  !< divisor in common, nor have 63 and a power of two.

  type, public :: found_type
    type(norms_type) :: norms
    integer(int64) :: checksum = 0
  end type found_type

  public :: read_all, checksum_of, is_equal

contains

  !> Reads all dumps; `solved%u` is the last of them then.
  subroutine read_all(class, part, file, solved, found)
    type(class_type), intent(in) :: class
    type(partition_type), intent(in) :: part
    type(dumps_type), intent(inout) :: file
    type(solver_type), intent(inout) :: solved
    type(found_type), intent(out) :: found
    integer :: dump

    call file%open_to_read(part)
    do dump = 0, class%dumps() - 1
      solved%u = 1.0_dp
      call file%read(part, dump, solved%u)
      found%norms%error = error_norm(part, solved%u)
      found%norms%dumps = found%norms%dumps + found%norms%error / class%dumps()
      found%checksum = ieor(found%checksum, checksum_of(part, dump, solved%u))
    end do
    call file%close()
    found%norms%residual = solved%residual(part)
    call MPI_Allreduce(MPI_IN_PLACE, found%checksum, 1, MPI_INTEGER8, MPI_BXOR, part%comm)
  end subroutine read_all

  !> Of the bits of this rank's points, as of a dump of this number.
  pure integer(int64) function checksum_of(part, dump, u) result(sum)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: dump
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    integer(int64) :: place
    integer :: c, x, y, z, m

    sum = 0
    do c = 1, part%p
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          do x = 0, part%cells(c)%edge(1) - 1
            place = unknowns * part%index_of(dump, c, x, y, z)
            do m = 1, unknowns
              sum = ieor(sum, ishftc(transfer(u(m, x, y, z, c), sum), &
                  int(mod(place + m, int(rotations, int64)))))
            end do
          end do
        end do
      end do
    end do
  end function checksum_of

  !> Whether two checksums are equal at every rank.
  logical function is_equal(part, one, other)
    type(partition_type), intent(in) :: part
    integer(int64), intent(in) :: one, other

    is_equal = one == other
    call MPI_Allreduce(MPI_IN_PLACE, is_equal, 1, MPI_LOGICAL, MPI_LAND, part%comm)
  end function is_equal

end module read_back
