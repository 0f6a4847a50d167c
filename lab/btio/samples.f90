!> How long each of many equal operations took.
module samples
  use equations, only: dp
  use json, only: json_type
  implicit none
  private

  integer, parameter :: room_first = 1024

  type, public :: samples_type
    real(dp) :: total_s = 0
    integer :: count = 0
    real(dp), allocatable, private :: seconds(:)
  contains
    procedure :: add
    procedure :: tell
  end type samples_type

contains

  subroutine add(this, seconds)
    class(samples_type), intent(inout) :: this
    real(dp), intent(in) :: seconds
    real(dp), allocatable :: larger(:)

    if (.not. allocated(this%seconds)) allocate (this%seconds(room_first))
    if (this%count == size(this%seconds)) then
      allocate (larger(2 * this%count))
      larger(:this%count) = this%seconds
      call move_alloc(larger, this%seconds)
    end if
    this%count = this%count + 1
    this%seconds(this%count) = seconds
    this%total_s = this%total_s + seconds
  end subroutine add

  !> An object of a report: how many, how long together, and how long each, in microseconds.
  subroutine tell(this, json, name)
    class(samples_type), intent(inout) :: this
    type(json_type), intent(inout) :: json
    character(*), intent(in) :: name

    call json%object(name)
    call json%whole('count', this%count)
    call json%number('total_s', this%total_s)
    if (this%count > 0) then
      call sort(this%seconds(:this%count))
      call json%number('min_us', 1.0e6_dp * this%seconds(1))
      call json%number('p50_us', 1.0e6_dp * percentile(this, 500))
      call json%number('p99_us', 1.0e6_dp * percentile(this, 990))
      call json%number('p99_9_us', 1.0e6_dp * percentile(this, 999))
      call json%number('max_us', 1.0e6_dp * this%seconds(this%count))
    end if
    call json%end_object()
  end subroutine tell

  !> What so many of a thousand do not exceed.
  pure real(dp) function percentile(sorted, of_thousand)
    type(samples_type), intent(in) :: sorted
    integer, intent(in) :: of_thousand

    percentile = sorted%seconds(max(1, ceiling(sorted%count * (of_thousand / 1000.0_dp))))
  end function percentile

  !> Heapsort: no worst case, no memory.
  pure subroutine sort(values)
    real(dp), intent(inout) :: values(:)
    real(dp) :: last
    integer :: i

    do i = size(values) / 2, 1, -1
      call sink(values, i)
    end do
    do i = size(values), 2, -1
      last = values(i)
      values(i) = values(1)
      values(1) = last
      call sink(values(:i - 1), 1)
    end do
  end subroutine sort

  pure subroutine sink(heap, from)
    real(dp), intent(inout) :: heap(:)
    integer, intent(in) :: from
    real(dp) :: value
    integer :: i, child

    value = heap(from)
    i = from
    do
      child = 2 * i
      if (child > size(heap)) exit
      if (child < size(heap)) then
        if (heap(child + 1) > heap(child)) child = child + 1
      end if
      if (heap(child) <= value) exit
      heap(i) = heap(child)
      i = child
    end do
    heap(i) = value
  end subroutine sink

end module samples
