!> The layers around a rank's cells, filled from the cells beside them: six messages a step.
module faces
  use mpi_f08, only: MPI_Isend, MPI_Irecv, MPI_Waitall, MPI_Request, MPI_DOUBLE_PRECISION, &
      MPI_STATUSES_IGNORE
  use equations, only: dp, unknowns, ghosts
  use decomposition, only: partition_type
  implicit none
  private

  integer, parameter :: up = 1, down = 2

  public :: exchange

contains

  !> Every cell's outermost two points go to the cells on both sides along all three directions.
  !> Edges and corners are not needed: no difference is mixed.
  subroutine exchange(part, u)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    real(dp), allocatable, asynchronous :: sent(:, :, :), got(:, :, :)
    type(MPI_Request) :: requests(12)
    integer :: e, most, count, r

    if (part%p == 1) return
    most = unknowns * ghosts * part%edge_max**2 * (part%p - 1)
    allocate (sent(most, 3, up:down), got(most, 3, up:down))
    r = 0
    do e = 1, 3
      call MPI_Irecv(got(:, e, up), most, MPI_DOUBLE_PRECISION, part%predecessor(e), e, part%comm, &
          requests(r + 1))
      call MPI_Irecv(got(:, e, down), most, MPI_DOUBLE_PRECISION, part%successor(e), 3 + e, &
          part%comm, requests(r + 2))
      r = r + 2
    end do
    do e = 1, 3
      call pack_faces(part, u, e, up, sent(:, e, up), count)
      call MPI_Isend(sent(:, e, up), count, MPI_DOUBLE_PRECISION, part%successor(e), e, part%comm, &
          requests(r + 1))
      call pack_faces(part, u, e, down, sent(:, e, down), count)
      call MPI_Isend(sent(:, e, down), count, MPI_DOUBLE_PRECISION, part%predecessor(e), 3 + e, &
          part%comm, requests(r + 2))
      r = r + 2
    end do
    call MPI_Waitall(r, requests, MPI_STATUSES_IGNORE)
    do e = 1, 3
      call unpack_faces(part, u, e, up, got(:, e, up))
      call unpack_faces(part, u, e, down, got(:, e, down))
    end do
  end subroutine exchange

  !> The last two points (`up`) or the first two of every cell that has a neighbour there.
  subroutine pack_faces(part, u, e, way, message, count)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(in) :: u(:, :, :, :, :)
    integer, intent(in) :: e, way
    real(dp), intent(inout) :: message(:)
    integer, intent(out) :: count
    integer :: c, low(3), high(3), face

    count = 0
    do c = 1, part%p
      if (part%cells(c)%at(e) == merge(part%p - 1, 0, way == up)) cycle
      low = 0
      high = part%cells(c)%edge - 1
      if (way == up) low(e) = high(e) - ghosts + 1
      if (way == down) high(e) = ghosts - 1
      face = unknowns * product(high - low + 1)
      message(count + 1:count + face) = reshape( &
          u(:, low(1):high(1), low(2):high(2), low(3):high(3), c), [face])
      count = count + face
    end do
  end subroutine pack_faces

  !> What went `up` comes to the layer before a cell's first point, what went `down` behind its
  !> last.
  subroutine unpack_faces(part, u, e, way, message)
    type(partition_type), intent(in) :: part
    real(dp), allocatable, intent(inout) :: u(:, :, :, :, :)
    integer, intent(in) :: e, way
    real(dp), intent(in) :: message(:)
    integer :: c, low(3), high(3), face, count

    count = 0
    do c = 1, part%p
      if (part%cells(c)%at(e) == merge(0, part%p - 1, way == up)) cycle
      low = 0
      high = part%cells(c)%edge - 1
      if (way == up) then
        low(e) = -ghosts
        high(e) = -1
      else
        low(e) = high(e) + 1
        high(e) = high(e) + ghosts
      end if
      face = unknowns * product(high - low + 1)
      u(:, low(1):high(1), low(2):high(2), low(3):high(3), c) = reshape( &
          message(count + 1:count + face), [unknowns, high - low + 1])
      count = count + face
    end do
  end subroutine unpack_faces

end module faces
