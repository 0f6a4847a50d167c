!> The implicit part of a step: block-tridiagonal systems along every line of a direction.
!>
!> A line goes through p cells of different ranks. Elimination runs up through them and substitution
!> back down: a rank takes a message for its cell of the plane, computes, passes one on. On the
!> faces of the grid nothing changes, so a line's system ends one point before them.
module sweeps
  use mpi_f08, only: MPI_Isend, MPI_Recv, MPI_Wait, MPI_Request, MPI_DOUBLE_PRECISION, &
      MPI_STATUS_IGNORE, MPI_REQUEST_NULL
  use equations, only: dp, unknowns
  use decomposition, only: partition_type, across
  use lines, only: get_line, put_line
  use jacobians, only: blocks, blocks_type
  implicit none
  private

  integer, parameter :: row = 2 * unknowns + 1
  !< Of the augmented matrix: own block, block above, right side.
  integer, parameter :: kept = unknowns + 1
  !< What remains of a row once its own block is eliminated.

  public :: solve_along, eliminated_type

  !> Rows after elimination, which the way back needs: (block above and right side, row, point,
  !> line, cell).
  type :: eliminated_type
    real(dp), allocatable :: rows(:, :, :, :, :)
  contains
    procedure :: make
  end type eliminated_type

contains

  subroutine make(this, part)
    class(eliminated_type), intent(inout) :: this
    type(partition_type), intent(in) :: part

    allocate (this%rows(kept, unknowns, 0:part%edge_max - 1, part%edge_max**2, part%p))
  end subroutine make

  !> `right` becomes the solution of the systems along `e`, of which it is the right side.
  subroutine solve_along(part, e, dt, u, right, work)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: e
    real(dp), intent(in) :: dt
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    real(dp), allocatable, intent(inout) :: right(:, :, :, :, :)
    type(eliminated_type), intent(inout) :: work
    real(dp), allocatable, asynchronous :: sent(:, :, :), got(:, :, :)
    real(dp), allocatable, asynchronous :: sent_back(:, :), got_back(:, :)
    type(MPI_Request) :: sending
    integer :: stage, c, count, last

    last = part%p - 1
    allocate (sent(kept, unknowns, part%edge_max**2), got(kept, unknowns, part%edge_max**2))
    allocate (sent_back(unknowns, part%edge_max**2), got_back(unknowns, part%edge_max**2))
    sending = MPI_REQUEST_NULL
    got = 0.0_dp
    do stage = 0, last
      c = part%at_stage(stage, e)
      count = size_of(part, c, e)
      if (stage > 0) call MPI_Recv(got, kept * unknowns * count, MPI_DOUBLE_PRECISION, &
          part%predecessor(e), stage - 1, part%comm, MPI_STATUS_IGNORE)
      call eliminate_cell(part, c, e, dt, u, right, got, work%rows(:, :, :, :, c))
      if (stage == last) exit
      call MPI_Wait(sending, MPI_STATUS_IGNORE)
      sent(:, :, :count) = work%rows(:, :, part%cells(c)%edge(e) - 1, :count, c)
      call MPI_Isend(sent, kept * unknowns * count, MPI_DOUBLE_PRECISION, part%successor(e), &
          stage, part%comm, sending)
    end do
    call MPI_Wait(sending, MPI_STATUS_IGNORE)
    got_back = 0.0_dp
    do stage = last, 0, -1
      c = part%at_stage(stage, e)
      count = size_of(part, c, e)
      if (stage < last) call MPI_Recv(got_back, unknowns * count, MPI_DOUBLE_PRECISION, &
          part%successor(e), part%p + stage + 1, part%comm, MPI_STATUS_IGNORE)
      call MPI_Wait(sending, MPI_STATUS_IGNORE)
      call substitute_cell(part, c, e, work%rows(:, :, :, :, c), got_back, right, sent_back)
      if (stage > 0) call MPI_Isend(sent_back, unknowns * count, MPI_DOUBLE_PRECISION, &
          part%predecessor(e), part%p + stage, part%comm, sending)
    end do
    call MPI_Wait(sending, MPI_STATUS_IGNORE)
  end subroutine solve_along

  !> Lines of a cell along a direction that are not on a face of the grid.
  pure integer function size_of(part, c, e)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: c, e
    integer :: others(2), range_a(2), range_b(2)

    others = across(e)
    range_a = part%interior(c, others(1))
    range_b = part%interior(c, others(2))
    size_of = (range_a(2) - range_a(1) + 1) * (range_b(2) - range_b(1) + 1)
  end function size_of

  !> Every line of a cell upwards. `before` has the row of the point before the cell, 0 at a face.
  subroutine eliminate_cell(part, c, e, dt, u, right, before, rows)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: c, e
    real(dp), intent(in) :: dt, before(:, :, :)
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :), right(:, :, :, :, :)
    real(dp), intent(inout) :: rows(:, :, 0:, :)
    real(dp), allocatable :: line(:, :), known(:, :)
    integer :: a, b, number, others(2), inside(2), range_a(2), range_b(2)

    others = across(e)
    inside = part%interior(c, e)
    range_a = part%interior(c, others(1))
    range_b = part%interior(c, others(2))
    allocate (line(inside(1) - 1:inside(2) + 1, unknowns), known(inside(1):inside(2), unknowns))
    number = 0
    do b = range_b(1), range_b(2)
      do a = range_a(1), range_a(2)
        number = number + 1
        call get_line(u(:, :, :, :, c), e, a, b, inside(1) - 1, line)
        call get_line(right(:, :, :, :, c), e, a, b, inside(1), known)
        call eliminate_line(e, dt, part%h, inside, line, known, before(:, :, number), &
            rows(:, :, :, number))
      end do
    end do
  end subroutine eliminate_cell

  pure subroutine eliminate_line(e, dt, h, inside, line, known, before, rows)
    integer, intent(in) :: e, inside(2)
    real(dp), intent(in) :: dt, h, before(:, :)
    real(dp), intent(in) :: line(inside(1) - 1:, :), known(inside(1):, :)
    real(dp), intent(inout) :: rows(:, :, 0:)
    real(dp) :: system(row, unknowns), last(kept, unknowns), factor
    type(blocks_type) :: previous, here, next
    integer :: i, j, k

    last = before
    previous = blocks(e, dt, h, line(inside(1) - 1, :))
    here = blocks(e, dt, h, line(inside(1), :))
    do i = inside(1), inside(2)
      next = blocks(e, dt, h, line(i + 1, :))
      do j = 1, unknowns
        system(:unknowns, j) = here%own(:, j)
        system(unknowns + 1:2 * unknowns, j) = next%above(:, j)
        system(row, j) = known(i, j)
        ! The block below is eliminated with the point before: its own block is the unit matrix now.
        do k = 1, unknowns
          factor = previous%below(k, j)
          system(:unknowns, j) = system(:unknowns, j) - factor * last(:unknowns, k)
          system(row, j) = system(row, j) - factor * last(kept, k)
        end do
      end do
      call make_unit(system)
      last = system(unknowns + 1:, :)
      rows(:, :, i) = last
      previous = here
      here = next
    end do
  end subroutine eliminate_line

  !> Gauss and Jordan's elimination of the own block. It is dominant, so nothing is exchanged.
  pure subroutine make_unit(system)
    real(dp), intent(inout) :: system(row, unknowns)
    real(dp) :: factor
    integer :: k, j

    do k = 1, unknowns
      system(k + 1:, k) = system(k + 1:, k) * (1.0_dp / system(k, k))
      do j = 1, unknowns
        if (j == k) cycle
        factor = system(k, j)
        system(k + 1:, j) = system(k + 1:, j) - factor * system(k + 1:, k)
      end do
    end do
  end subroutine make_unit

  !> Every line of a cell downwards. `behind` has the solution behind the cell, 0 at a face; `first`
  !> gets that of its first point.
  subroutine substitute_cell(part, c, e, rows, behind, right, first)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: c, e
    real(dp), intent(in) :: rows(:, :, 0:, :), behind(:, :)
    real(dp), allocatable, intent(inout) :: right(:, :, :, :, :)
    real(dp), intent(inout) :: first(:, :)
    real(dp), allocatable :: solution(:, :)
    real(dp) :: x(unknowns)
    integer :: a, b, i, j, number, others(2), inside(2), range_a(2), range_b(2)

    others = across(e)
    inside = part%interior(c, e)
    range_a = part%interior(c, others(1))
    range_b = part%interior(c, others(2))
    allocate (solution(inside(1):inside(2), unknowns))
    number = 0
    do b = range_b(1), range_b(2)
      do a = range_a(1), range_a(2)
        number = number + 1
        x = behind(:, number)
        do i = inside(2), inside(1), -1
          do j = 1, unknowns
            solution(i, j) = rows(kept, j, i, number) - sum(rows(:unknowns, j, i, number) * x)
          end do
          x = solution(i, :)
        end do
        first(:, number) = x
        call put_line(right(:, :, :, :, c), e, a, b, inside(1), solution)
      end do
    end do
  end subroutine substitute_cell

end module sweeps
