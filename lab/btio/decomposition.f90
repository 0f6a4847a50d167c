!> Who has which part of the grid: multi-partitioning over p x p ranks.
!>
!> The grid is cut into p x p x p cells, and each rank has p of them on a diagonal, so that in every
!> plane of cells across any direction each rank has just one: a sweep along a direction keeps all
!> of them busy. A rank has the same successor along a direction for all its cells.
module decomposition
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08, only: MPI_Comm, MPI_Comm_rank, MPI_Comm_size
  use equations, only: dp, unknowns, ghosts
  implicit none
  private

  integer, parameter, public :: edge_min = 3
  !< A fourth difference at a cell's edge must end in the cell beside it.

  type, public :: cell_type
    integer :: at(3) = 0
    !< Which of the p x p x p.
    integer :: start(3) = 0
    !< Its first point in the grid, counted from 0.
    integer :: edge(3) = 0
  end type cell_type

  type, public :: partition_type
    type(MPI_Comm) :: comm
    integer :: rank = 0
    integer :: p = 0
    integer :: n = 0
    real(dp) :: h = 0
    integer :: edge_max = 0
    type(cell_type), allocatable :: cells(:)
    integer :: successor(3) = 0, predecessor(3) = 0
    integer, allocatable :: at_stage(:, :)
    !< The cell in plane 0 to p-1 across a direction.
  contains
    procedure :: interior
    procedure :: points
    procedure :: place
    procedure :: index_of
    procedure :: new_field
  end type partition_type

  public :: partition, across

contains

  !> The part of this rank. `reason` says why there can be none.
  subroutine partition(comm, n, made, reason)
    type(MPI_Comm), intent(in) :: comm
    integer, intent(in) :: n
    type(partition_type), intent(out) :: made
    character(:), allocatable, intent(out) :: reason
    character(160) :: text
    integer :: ranks, c, x, y

    made%comm = comm
    call MPI_Comm_rank(comm, made%rank)
    call MPI_Comm_size(comm, ranks)
    made%p = nint(sqrt(real(ranks)))
    made%n = n
    made%h = 1.0_dp / (n - 1)
    if (made%p**2 /= ranks) then
      write (text, '(i0, a)') ranks, ' ranks: allowed are squares (1, 4, 9, 16, ...)'
      reason = trim(text)
      return
    end if
    if (n / made%p < edge_min) then
      write (text, '(i0, a, i0, a, i0, a)') ranks, ' ranks are too many for ', n, &
          ' points a direction: at most ', (n / edge_min)**2, ' are allowed'
      reason = trim(text)
      return
    end if
    x = mod(made%rank, made%p)
    y = made%rank / made%p
    allocate (made%cells(made%p), made%at_stage(0:made%p - 1, 3))
    do c = 1, made%p
      made%cells(c) = cell(made, [modulo(x + c - 1, made%p), modulo(y - c + 1, made%p), c - 1])
      made%at_stage(made%cells(c)%at(1), 1) = c
      made%at_stage(made%cells(c)%at(2), 2) = c
      made%at_stage(made%cells(c)%at(3), 3) = c
    end do
    made%edge_max = (n + made%p - 1) / made%p
    made%successor = [rank_at(x + 1, y), rank_at(x, y + 1), rank_at(x - 1, y + 1)]
    made%predecessor = [rank_at(x - 1, y), rank_at(x, y - 1), rank_at(x + 1, y - 1)]

  contains

    pure integer function rank_at(x, y)
      integer, intent(in) :: x, y

      rank_at = modulo(y, made%p) * made%p + modulo(x, made%p)
    end function rank_at

  end subroutine partition

  !> The first n mod p cells along a direction are one point longer.
  pure type(cell_type) function cell(part, at)
    type(partition_type), intent(in) :: part
    integer, intent(in) :: at(3)
    integer :: least, longer

    least = part%n / part%p
    longer = mod(part%n, part%p)
    cell%at = at
    cell%edge = least + merge(1, 0, at < longer)
    cell%start = at * least + min(at, longer)
  end function cell

  !> First and last point of a cell along direction `e` that is not on a face of the grid.
  pure function interior(this, c, e) result(range)
    class(partition_type), intent(in) :: this
    integer, intent(in) :: c, e
    integer :: range(2)

    associate (one => this%cells(c))
      range(1) = merge(1, 0, one%start(e) == 0)
      range(2) = one%edge(e) - 1 - merge(1, 0, one%start(e) + one%edge(e) == this%n)
    end associate
  end function interior

  !> All points of the rank.
  pure integer function points(this)
    class(partition_type), intent(in) :: this
    integer :: c

    points = sum([(product(this%cells(c)%edge), c=1, this%p)])
  end function points

  !> Where a point of a cell is in the unit cube.
  pure function place(this, c, x, y, z) result(at)
    class(partition_type), intent(in) :: this
    integer, intent(in) :: c, x, y, z
    real(dp) :: at(3)

    at = real(this%cells(c)%start + [x, y, z], dp) * this%h
  end function place

  !> Where a point of a cell is in the file of dumps: points before it.
  pure integer(int64) function index_of(this, dump, c, x, y, z)
    class(partition_type), intent(in) :: this
    integer, intent(in) :: dump, c, x, y, z
    integer(int64) :: n
    integer :: grid(3)

    n = this%n
    grid = this%cells(c)%start + [x, y, z]
    index_of = ((dump * n + grid(3)) * n + grid(2)) * n + grid(1)
  end function index_of

  !> Five unknowns at every point of every cell and in the layers around it. Outside the grid there
  !> is 1 for good, which no result depends on.
  pure subroutine new_field(this, field)
    class(partition_type), intent(in) :: this
    real(dp), allocatable, intent(out) :: field(:, :, :, :, :)
    integer :: last

    last = this%edge_max - 1 + ghosts
    allocate (field(unknowns, -ghosts:last, -ghosts:last, -ghosts:last, this%p))
    field = 1.0_dp
  end subroutine new_field

  !> The two directions across `e`, in ascending order.
  pure function across(e) result(others)
    integer, intent(in) :: e
    integer :: others(2)

    others = pack([1, 2, 3], [1, 2, 3] /= e)
  end function across

end module decomposition
