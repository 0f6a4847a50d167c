!> The norms by which a run is judged: over all ranks, one for each unknown.
module norms
  use mpi_f08, only: MPI_Allreduce, MPI_IN_PLACE, MPI_DOUBLE_PRECISION, MPI_SUM
  use equations, only: dp, unknowns, exact
  use decomposition, only: partition_type
  implicit none
  private

  real(dp), parameter :: tolerance = 1.0e-8_dp
  !< NPB's: relative to the reference.

  public :: error_norm, residual_norm, agree

contains

  !> How far `u` is from the exact solution, over all points of the grid.
  function error_norm(part, u) result(norm)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    real(dp) :: norm(unknowns)
    integer :: c, x, y, z

    norm = 0.0_dp
    do c = 1, part%p
      do z = 0, part%cells(c)%edge(3) - 1
        do y = 0, part%cells(c)%edge(2) - 1
          do x = 0, part%cells(c)%edge(1) - 1
            norm = norm + (u(:, x, y, z, c) - exact(part%place(c, x, y, z)))**2
          end do
        end do
      end do
    end do
    call finish(part, norm)
  end function error_norm

  !> Of a right side, over the points inside the grid, for a step of length 1.
  function residual_norm(part, dt, right) result(norm)
    type(partition_type), intent(in) :: part
    real(dp), intent(in) :: dt
    real(dp), allocatable, intent(in) :: right(:, :, :, :, :)
    real(dp) :: norm(unknowns)
    integer :: c, x, y, z, range_x(2), range_y(2), range_z(2)

    norm = 0.0_dp
    do c = 1, part%p
      range_x = part%interior(c, 1)
      range_y = part%interior(c, 2)
      range_z = part%interior(c, 3)
      do z = range_z(1), range_z(2)
        do y = range_y(1), range_y(2)
          do x = range_x(1), range_x(2)
            norm = norm + right(:, x, y, z, c)**2
          end do
        end do
      end do
    end do
    call finish(part, norm)
    norm = norm / dt
  end function residual_norm

  subroutine finish(part, squares)
    type(partition_type), intent(in) :: part
    real(dp), intent(inout) :: squares(unknowns)

    call MPI_Allreduce(MPI_IN_PLACE, squares, unknowns, MPI_DOUBLE_PRECISION, MPI_SUM, part%comm)
    squares = sqrt(squares / real(part%n - 2, dp)**3)
  end subroutine finish

  !> Whether norms are those of the reference; what is not a number never is.
  pure logical function agree(found, reference)
    real(dp), intent(in) :: found(unknowns), reference(unknowns)

    agree = all(abs(found - reference) <= tolerance * abs(reference))
  end function agree

end module norms
